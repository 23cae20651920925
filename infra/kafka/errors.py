"""The error that a person reads when there is no broker."""


class BrokerError(RuntimeError):
    """No usable broker; the message names what is wrong, where, and what to do.

    The first line is complete by itself. Further lines, if any, are the end of the broker's own log.
    """
