"""Faust's Kafka transport, corrected so that no record is lost while partitions move."""

import asyncio
import copy
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.consumer.fetcher import READ_UNCOMMITTED
from faust.streams import Stream
from faust.tables.manager import TableManager
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Transport
from faust.types import TP
from faust.types.tuples import ConsumerMessage, Message
from mode.services import WaitResults

from streams.kafka.records import Partition, ReadRecord

MOST_RECORDS_AT_ONCE = 500
_MOST_RECORDS_WAITING = 4_000
"""Most records of a partition that are fetched and not yet read by its agent; more stay with the broker."""
_TURN_S = 0.005
"""Interval at which other tasks run between records. Each turn sends a batch to the broker: shorter turns
cost up to a fifth more CPU per bid."""
_SHORT_FETCH_S = 0.02
"""Longest fetch of other partitions while one has enough records: it may soon need more."""
_APPENDED = 1
"""Type of a timestamp that the broker has set."""
LONGEST_ANSWER_S = 0.05
"""Longest wait of the broker for records before it answers a fetch.

aiokafka has one fetch in flight to a broker at a time. The fetch omits partitions with unread records, and
new records of those must wait for its answer.
"""
_LONGEST_FETCH_S = 0.2
"""Longest wait of a fetch for records; a seek, and so the start of a reassigned partition, may wait for
it."""


class _Fetch(ConsumerMessage):
    """Records of one partition from one fetch, as one message to Faust. With a message per record, Faust
    would take as long per record as the decision."""

    __slots__ = ("records", "seeks")

    def __init__(self, tp: TP, records: Sequence[ConsumerRecord], generation_id: int, seeks: int) -> None:
        last = records[-1].offset
        super().__init__(
            tp.topic, tp.partition, last, 0.0, 0, None, None, None, None, tp=tp, generation_id=generation_id
        )
        self.records = records
        self.seeks = seeks
        """Number of seeks before it."""


class _PromptThread(AIOKafkaConsumerThread):
    """Faust's thread of a consumer, with short waits for records, and without records of aborted
    transactions."""

    def _create_worker_consumer(self, transport: Any) -> AIOKafkaConsumer:
        consumer = super()._create_worker_consumer(transport)
        # Faust has no setting for this, and waits for 1.5 s.
        consumer._fetch_max_wait_ms = int(LONGEST_ANSWER_S * 1_000)
        # Faust sets this only inside its transactions, and would deliver aborted records.
        consumer._isolation_level = "read_committed"
        return consumer

    async def _highwaters(self, partitions: Sequence[TP]) -> Mapping[TP, int]:
        """Return the ends of changelogs, records of open transactions included: these may be snapshots."""
        fetcher = copy.copy(self._ensure_consumer()._fetcher)
        fetcher._isolation_level = READ_UNCOMMITTED
        timeout_ms = self._ensure_consumer()._request_timeout_ms
        return dict(await fetcher.end_offsets([TopicPartition(*tp) for tp in partitions], timeout_ms))


class ExactConsumer(Consumer):
    """A consumer that commits acknowledged records only, and delivers every record after them.

    Faust's own consumer counts records as done that it did not deliver: its streams skip records while
    partitions move, and it takes a jump in the offsets for a hole in the log. After a crash such records
    would be lost. Here a partition's offset follows `acknowledge` alone, which must be called in the order
    of delivery. Delivery has no gaps after the last `perform_seek`: nothing is read while it runs, and
    records that were read before it are dropped and read again.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._done: dict[TP, int] = {}
        self._reading = asyncio.Lock()
        self._seeks = 0
        self._seeks_before_batch = 0
        self._is_positioned = False
        """Whether a seek has been made since partitions moved."""
        self._returned: dict[TP, int] = {}
        """Last offset fetched since the last seek, by partition."""
        self._backlogged: set[TP] = set()
        """Partitions whose last fetch returned at least half of `MOST_RECORDS_AT_ONCE`, or whose waiting
        records are at the limit."""
        self._waiting: Counter[TP] = Counter()
        """Number of records since the last seek that no agent has read, by partition."""

    async def records(self, stream: Stream[bytes]) -> AsyncIterator[ReadRecord]:
        """Yield the records of an agent's stream; those fetched before partitions move are dropped.

        Other tasks run between records.
        """
        turn_s = time.monotonic()
        async for event in stream.noack().events():
            fetch: _Fetch = event.message
            for record in fetch.records:
                if not self._is_current(fetch):
                    break
                yield _read_record(record)
                self._waiting[fetch.tp] -= 1
                if time.monotonic() - turn_s > _TURN_S:
                    await asyncio.sleep(0)
                    turn_s = time.monotonic()

    def acknowledge(self, place: Partition, offset: int) -> None:
        """Acknowledge a record and all before it in its partition: the group's offset may pass them."""
        self._done[TP(*place)] = offset + 1

    def read_until_s(self, place: Partition, last_offset: int) -> float | None:
        """Return the Unix time up to which a partition is read, by the broker's last answer.

        Args:
            last_offset: offset of the last record that was read; -1 if none was since partitions moved.

        Returns:
            The time; None while records are in flight, or before an answer.
        """
        tp = TP(*place)
        if not self._is_positioned or last_offset < self._returned.get(tp, -1):
            return None
        state = self._state(tp)
        # The position passes markers of transactions, and stays at the first open transaction.
        if state is None or state.position < state.highwater:
            return None
        return float(state.timestamp) / 1_000

    def ends(self) -> Iterator[tuple[TP, int, int]]:
        """Yield each partition that is read, with its last stable offset and its high watermark of one
        answer."""
        for tp in self.assignment():
            state = self._state(tp)
            if state is not None and state.lso is not None:
                yield tp, state.lso, state.highwater

    def _state(self, tp: TP) -> Any:
        """Return aiokafka's state of a partition that is read; None before the first answer about it."""
        subscription = self._thread._consumer and self._thread._consumer._subscription.subscription
        assignment = subscription and subscription.assignment
        if assignment is None or tp not in assignment.tps:
            return None
        state = assignment.state_value(tp)
        return state if state.highwater is not None and state.has_valid_position else None

    def backlogged(self) -> Collection[Partition]:
        """Return the partitions with many records left at the last fetch."""
        return [Partition(*tp) for tp in self._backlogged]

    def ack(self, message: Message) -> bool:  # noqa: ARG002 -- Faust's signature
        """Do nothing: only Faust's streams call this."""
        return False

    async def wait_first(self, *waited: Any, timeout: Any = None) -> WaitResults:
        """Wait for the first of several awaitables; without Faust's four tasks if the first one ends at once.

        Faust calls this for the delivery of every record. It waits only if the stream is full.
        """
        if not asyncio.iscoroutine(waited[0]):
            return await super().wait_first(*waited, timeout=timeout)
        first = asyncio.ensure_future(waited[0])
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            first.cancel()
            raise
        if not first.done():
            return await super().wait_first(first, *waited[1:], timeout=timeout)
        for other in waited[1:]:
            other.close()
        return WaitResults([first], [first.result()], self.should_stop)

    def _new_consumer_thread(self) -> _PromptThread:
        return _PromptThread(self, loop=self.loop, beacon=self.beacon)

    async def perform_seek(self) -> None:
        """Seek to the group's offsets, and to the beginning of each partition without one.

        For partitions without an offset, Faust continues where reading stopped.
        """
        async with self._reading:
            for tp in self.assignment():
                # An offset noted for an earlier assignment may never have reached the group.
                self._committed_offset.pop(tp, None)
            await super().perform_seek()
            unread = [
                TopicPartition(tp.topic, tp.partition)
                for tp in self.assignment()
                if not self._read_offset[tp] and not self._is_changelog_tp(tp)
            ]
            if unread:
                await self._thread.seek_to_beginning(*unread)
            self._returned.clear()
            self._waiting.clear()
            self._backlogged.clear()
            self._seeks += 1
            self._is_positioned = True

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Message]]:
        """Yield the records of one fetch, unless partitions have moved since; records of changelogs are
        always yielded."""
        async for tp, message in super().getmany(timeout):
            if self._is_changelog_tp(tp) or (self._is_positioned and self._seeks_before_batch == self._seeks):
                yield tp, message

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Stop the delivery until `perform_seek`."""
        self._is_positioned = False
        await super().on_partitions_revoked(revoked)
        for tp in revoked:
            self._done.pop(tp, None)

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """Hold the delivery until `perform_seek`."""
        self._is_positioned = False
        await super().on_partitions_assigned(assigned, generation_id)

    async def _commit_offsets(self, offsets: Mapping[TP, int], start_new_transaction: bool = True) -> bool:
        """Commit offsets, and retry at the next turn those that may not have reached the group.

        Faust notes an offset as committed even if the group refused it during a rebalance, and if partitions
        have moved meanwhile. After a seek while the answer was in flight, Faust would never retry, so forget
        the offset here.
        """
        seeks = self._seeks
        committed: bool = await super()._commit_offsets(offsets, start_new_transaction)
        if not committed or seeks != self._seeks:
            for tp in offsets:
                self._committed_offset.pop(tp, None)
        return committed

    def _is_current(self, fetch: _Fetch) -> bool:
        return bool(self._is_positioned and self._seeks == fetch.seeks and self.app.flow_control.is_active())

    def _to_message(self, tp: TP, record: Any) -> ConsumerMessage:
        if self._is_changelog_tp(tp):
            return super()._to_message(tp, record)
        return _Fetch(tp, record, self.app.consumer_generation_id, self._seeks)

    async def _getmany(self, active_partitions: set[TP] | None, timeout: float) -> Any:
        """Return the contents of messages: single records of a changelog, and fetches of other partitions."""
        async with self._reading:
            self._seeks_before_batch = self._seeks
            active = active_partitions or set()
            full = {tp for tp in active if self._waiting[tp] >= _MOST_RECORDS_WAITING}
            # A copy, since Faust changes its set while the fetch waits; an empty set would mean all
            # partitions.
            partitions = active - full
            longest_s = min(timeout, _SHORT_FETCH_S if full else _LONGEST_FETCH_S)
            if not partitions:
                await asyncio.sleep(longest_s)
                return {}
            records = await self._fetch_fairly(partitions, longest_s)
            self._backlogged |= full
            for tp, fetched in records.items():
                self._returned[tp] = fetched[-1].offset
                if not self._is_changelog_tp(tp):
                    self._waiting[tp] += len(fetched)
                    records[tp] = [fetched]
            self._pass_markers()
            return records

    def _pass_markers(self) -> None:
        """End the recovery of changelogs whose last offsets hold no record.

        Faust waits for a record at the last offset, and checks every five seconds whether it was read. That
        offset has no record if a transaction has ended there, or if the last record was compacted.
        """
        recovery = cast(TableManager, self.app.tables).recovery
        for seen, ends in (
            (recovery.active_offsets, recovery.active_highwaters),
            (recovery.standby_offsets, recovery.standby_highwaters),
        ):
            for tp, end in ends.items():
                state = self._state(tp)
                applied = seen.get(tp)
                if applied is None or state is None or applied < self._returned.get(tp, -1):
                    continue  # records are in flight to the table
                if applied < end < state.position:
                    seen[tp] = end

    async def _fetch_fairly(self, partitions: set[TP], timeout: float) -> dict[TP, Any]:
        """Fetch records so that no partition keeps others waiting, however many it holds.

        aiokafka returns a bounded number of records at once, of the partitions that it reads first, and it
        reads them in the same order each time.
        """
        backlogged = self._backlogged & partitions
        others, records = partitions - backlogged, {}
        if others:
            records = dict(await super()._getmany(others, 0.0 if backlogged else timeout))
        for tp in sorted(backlogged):
            records.update(await super()._getmany({tp}, 0.0))
        many = MOST_RECORDS_AT_ONCE // 2
        self._backlogged = {tp for tp, fetched in records.items() if len(fetched) >= many}
        return records

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Iterator[TP]:
        return (tp for tp in list(self._done) if topics is None or tp in topics or tp.topic in topics)

    def _new_offset(self, tp: TP) -> int | None:
        return self._done.get(tp)

    async def _add_gap(self, tp: TP, offset_from: int, offset_to: int) -> None:
        """Do nothing: gaps are skipped together with the next record."""


class PromptTables(TableManager):
    """Faust's manager of tables, without its wait of a second for tables that modules still define."""

    async def on_start(self) -> None:
        """Register the tables, all of which are defined before the application starts."""
        await self._update_channels()
        await self.recovery.start()


class ExactTransport(Transport):
    """Faust's transport with `ExactConsumer`."""

    Consumer: ClassVar[Any] = ExactConsumer


def _read_record(record: ConsumerRecord) -> ReadRecord:
    return ReadRecord(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp,
        key=record.key,
        value=record.value,
        headers=tuple(record.headers),
        is_broker_time=record.timestamp_type == _APPENDED,
        from_offset=getattr(record, "from_offset", None),
    )
