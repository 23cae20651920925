"""The errors that a person reads when there is no broker, or not the right topics on it."""

from clients.errors import BrokerError, TopicError

__all__ = ["BrokerError", "TopicError"]
