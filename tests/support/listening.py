"""Sockets that processes listen with."""

from collections.abc import Iterable
from contextlib import suppress

import psutil


def listening(processes: Iterable[psutil.Process]) -> list[tuple[str, str, int]]:
    """Command line, address and port of each socket that processes listen with."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            command = " ".join(process.cmdline())
            found += [
                (command, one.laddr.ip.removeprefix("::ffff:"), one.laddr.port)
                for one in process.net_connections("inet")
                if one.status == psutil.CONN_LISTEN
            ]
    return found


def places(pids: Iterable[int]) -> set[tuple[str, int]]:
    """Address and port of each."""
    running = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return {(address, port) for _, address, port in listening(running)}
