"""Network interface of the ranks of a node."""

import os
import socket

import psutil

INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Variables that set the network interface of Gloo and NCCL."""


def interface_of(host: str) -> str:
    """Return the network interface of this machine that has the address of `host`.

    Raises:
        OSError: no such host exists, or it is another machine.
    """
    address = socket.gethostbyname(host)
    for interface, addresses in sorted(psutil.net_if_addrs().items()):
        if any(address == entry.address for entry in addresses):
            return interface
    raise OSError(f"worker host {host}: no network interface here has the address {address}")


def use_interface(host: str) -> None:
    """Let Gloo and NCCL connect over the interface of `host`, unless the environment names one.

    Raises:
        OSError: the host has no interface here.
    """
    interface = interface_of(host)
    for variable in INTERFACE_VARIABLES:
        os.environ.setdefault(variable, interface)
