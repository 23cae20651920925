"""The errors that a person reads when Kafka does not answer, or not as it should."""


class BrokerError(RuntimeError):
    """No usable broker; the message names what is wrong, where, and what to do.

    The first line is complete by itself. Further lines, if any, are the end of the broker's own log.
    """


class UnansweredError(BrokerError):
    """Nobody answers at the address."""


class TopicError(BrokerError):
    """Topics cannot be created, or are not what they must be; the message lists every difference."""
