"""Which network interface the workers of a node use."""

import os
import socket

import psutil

_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def interface_of(host: str) -> str:
    """The network interface of this machine that has the address of `host`.

    Raises:
        OSError: no such host is known, or it is another machine.
    """
    address = socket.gethostbyname(host)
    for interface, addresses in sorted(psutil.net_if_addrs().items()):
        if any(address == entry.address for entry in addresses):
            return interface
    raise OSError(f"worker host {host}: no network interface here has the address {address}")


def use_interface(host: str) -> None:
    """Have Gloo and NCCL connect over the interface of `host`, unless the environment names one.

    Raises:
        OSError: there is none.
    """
    interface = interface_of(host)
    for variable in _VARIABLES:
        os.environ.setdefault(variable, interface)
