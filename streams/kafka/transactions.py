"""Transactions of other clients. Millrace writes none, but any producer of its topics may.

Every consumer reads committed records only, so it receives nothing from the first offset of an open
transaction on (the last stable offset) until the transaction ends. The consumers log this, since it looks
like a stopped producer otherwise.
"""

import json
from logging import Logger
from typing import Any

from streams.kafka.records import Partition

_STATISTICS_EVERY_MS = 2_000


class OpenTransactions:
    """Logs each open transaction that holds a partition back, once when it is found and once when it has
    ended."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._seen: dict[Partition, int] = {}
        """Last stable offset of each partition that was behind its high watermark at the latest check."""
        self._reported: dict[Partition, int] = {}

    def settings(self) -> dict[str, Any]:
        """Settings of a librdkafka consumer that report the partitions it reads to this object."""
        return {"statistics.interval.ms": _STATISTICS_EVERY_MS, "stats_cb": self.read_statistics}

    def read_statistics(self, statistics: str) -> None:
        """Check the partitions in librdkafka's statistics, a JSON object."""
        for topic, found in json.loads(statistics).get("topics", {}).items():
            for number, partition in found["partitions"].items():
                self.look(topic, int(number), partition["ls_offset"], partition["hi_offset"])

    def look(self, topic: str, partition: int, stable: int, high: int) -> None:
        """Compare both ends of a partition; report a transaction that is open at two consecutive checks.

        Args:
            stable: the last stable offset, below 0 if it is unknown.
            high: the high watermark, from the same answer of the broker.
        """
        place = Partition(topic, partition)
        if stable < 0:
            return
        if stable >= high:
            self._seen.pop(place, None)
        elif self._seen.get(place) == stable:
            self.report(topic, partition, stable)
        else:
            self._seen[place] = stable
        if place in self._reported and stable > self._reported[place]:
            began = self._reported.pop(place)
            self._log.warning("%s[%d]: the transaction at offset %d has ended", topic, partition, began)

    def report(self, topic: str, partition: int, stable: int) -> None:
        """Log that a transaction is open, unless this was logged before."""
        if self._reported.get(Partition(topic, partition)) == stable:
            return
        self._reported[Partition(topic, partition)] = stable
        self._log.warning(
            "%s[%d]: a transaction is open at offset %d; nothing from there on is read until it ends",
            topic,
            partition,
            stable,
        )
