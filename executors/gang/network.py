"""Checks that a node can run ranks, and the network interface of its ranks."""

import os
import socket
from pathlib import Path

import psutil

from executors.node.runner import UnfitError

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


def check_place(worker_host: str, **folders: Path) -> None:
    """Check that a node can run ranks.

    Args:
        folders: folders that must exist, by the names of their settings.

    Raises:
        UnfitError: one is missing, or the worker host is another machine.
    """
    for name, folder in folders.items():
        if not folder.is_dir():
            raise UnfitError(f"{name.replace('_', ' ')} {folder} is not a folder")
    try:
        interface_of(worker_host)
    except OSError as error:
        raise UnfitError(str(error)) from error


def use_interface(host: str) -> None:
    """Let Gloo and NCCL connect over the interface of `host`, unless the environment names one.

    Raises:
        OSError: the host has no interface here.
    """
    interface = interface_of(host)
    for variable in INTERFACE_VARIABLES:
        os.environ.setdefault(variable, interface)
