"""The log of a service: each message is one line on standard error, in characters that are seen."""

import logging

from schemas.text import plain


class PlainFormatter(logging.Formatter):
    """Time, level, logger and message; what strangers wrote in a message tells a terminal nothing."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802, the name is the library's
        record.message = plain(record.message)
        return super().formatMessage(record)


def begin_log(level: str) -> None:
    """Write what is logged from now on, at this level or above."""
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter())
    logging.basicConfig(level=level, handlers=[handler])
