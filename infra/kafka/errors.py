"""The errors that a person reads when there is no broker, or not the right topics on it."""

from streams.kafka.errors import BrokerError, TopicError

__all__ = ["BrokerError", "TopicError"]
