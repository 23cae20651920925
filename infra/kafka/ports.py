"""Ports on this machine that nobody else is given meanwhile."""

import errno
import socket

from infra.kafka.errors import BrokerError
from infra.kafka.properties import LOOPBACK


def reserve_port(port: int) -> socket.socket:
    """Bind `port` on 127.0.0.1, or a free one for 0, and keep it as long as the socket is open.

    The socket never listens, so a server that sets SO_REUSEADDR, as Java's do, can take the port, and
    no other process gets it between our choice and the server's start, or between two starts.

    Raises:
        BrokerError: the port is taken or may not be bound.
    """
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if port:
            # Else the connections of an earlier run, in TIME_WAIT, would be in the way.
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind((LOOPBACK, port))
        # Set after the choice of a free port: set before, it could choose one that is reserved already.
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError as error:
        reservation.close()
        reason = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be bound ({error.strerror})"
        raise BrokerError(
            f"Port {port} on {LOOPBACK} {reason}: free it, or set MILLRACE_BROKER_PORT to another, or to 0"
        ) from error
    return reservation
