"""Network interface of the ranks of a node."""

import os

from executors.settings import interface_of

INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Variables that set the network interface of Gloo and NCCL."""


def use_interface(host: str) -> None:
    """Let Gloo and NCCL connect over the interface of `host`, unless the environment names one.

    Raises:
        OSError: the host has no interface here.
    """
    interface = interface_of(host)
    for variable in INTERFACE_VARIABLES:
        os.environ.setdefault(variable, interface)
