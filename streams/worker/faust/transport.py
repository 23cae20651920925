"""Faust's Kafka transport, corrected so that nothing is lost while partitions move."""

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

from streams.kafka.records import Place, ReadRecord

MOST_RECORDS_AT_ONCE = 500
_MOST_RECORDS_WAITING = 4_000
"""Of a partition, fetched and not yet taken by the agent that they are for; more stay with the broker."""
_TURN_S = 0.005
"""Others get their turn between records after so long. With each turn a batch goes to the broker and is read
again: shorter ones cost a bid up to a fifth more CPU in small requests."""
_LOOK_AGAIN_S = 0.02
"""So long a fetch of other partitions may take while one has enough waiting: it may soon have no more."""
_APPENDED = 1
"""The type of a timestamp that the broker has set."""
LONGEST_ANSWER_S = 0.05
"""How long the broker waits for records before it answers a fetch.

aiokafka has one fetch under way to a broker at a time. It leaves out the partitions of which something is
still to be taken, and new records of those must wait until it is answered.
"""
_LONGEST_FETCH_S = 0.2
"""How long a fetch waits for records: so long may a seek, and thus a worker that takes over, wait for it."""


class _Fetch(ConsumerMessage):
    """What a fetch has returned of one partition: one message to Faust, whose own part would otherwise cost
    each record as much as deciding it."""

    __slots__ = ("records", "seeks")

    def __init__(self, tp: TP, records: Sequence[ConsumerRecord], generation_id: int, seeks: int) -> None:
        last = records[-1].offset
        super().__init__(
            tp.topic, tp.partition, last, 0.0, 0, None, None, None, None, tp=tp, generation_id=generation_id
        )
        self.records = records
        self.seeks = seeks
        """How often partitions had been sought when it was made."""


class _PromptThread(AIOKafkaConsumerThread):
    def _create_worker_consumer(self, transport: Any) -> AIOKafkaConsumer:
        consumer = super()._create_worker_consumer(transport)
        # Faust has no setting for it, and waits for 1.5 s.
        consumer._fetch_max_wait_ms = int(LONGEST_ANSWER_S * 1_000)
        # Nor for this, outside its own transactions: it would deliver what a producer has taken back.
        consumer._isolation_level = "read_committed"
        return consumer

    async def _highwaters(self, partitions: Sequence[TP]) -> Mapping[TP, int]:
        """The ends of changelogs, with all that an open transaction holds back: it may cover snapshots."""
        fetcher = copy.copy(self._ensure_consumer()._fetcher)
        fetcher._isolation_level = READ_UNCOMMITTED
        timeout_ms = self._ensure_consumer()._request_timeout_ms
        return dict(await fetcher.end_offsets([TopicPartition(*tp) for tp in partitions], timeout_ms))


class ExactConsumer(Consumer):
    """A consumer that commits what it was told is done, and delivers every record from there on.

    Faust's own counts a record that it did not deliver as done: its streams pass over records while
    partitions move, and a jump in the offsets is taken for a hole in the log. After a crash such records
    would be lost. Here a partition's offset follows `acknowledge` alone, which must be called in the order
    of delivery; and what is delivered is gapless from the last `perform_seek` on: nothing is read while it
    runs, and what was read before it is dropped and read again.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._done: dict[TP, int] = {}
        self._reading = asyncio.Lock()
        self._seeks = 0
        self._seeks_before_batch = 0
        self._sought = False
        self._returned: dict[TP, int] = {}
        """The last offset that was fetched of each partition since it was sought."""
        self._deep: set[TP] = set()
        """Partitions of which more was there than the last fetch could return."""
        self._waiting: Counter[TP] = Counter()
        """Records of each partition that no agent has taken since it was sought."""

    async def records(self, stream: Stream[bytes]) -> AsyncIterator[ReadRecord]:
        """The records of an agent's stream, until partitions move: what was fetched before is dropped then.

        Others get their turn between records.
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

    def acknowledge(self, place: Place, offset: int) -> None:
        """This record and all before it in its partition are done: the group's offset may pass them."""
        self._done[TP(*place)] = offset + 1

    def read_until_s(self, place: Place, last_offset: int) -> float | None:
        """Up to which moment (Unix time) all of a partition has been taken, by the broker's last answer.

        Args:
            last_offset: of the last record that was taken; -1 where none was since partitions moved.

        Returns:
            None where records are known to be on their way, or nothing is known.
        """
        tp = TP(*place)
        if not self._sought or last_offset < self._returned.get(tp, -1):
            return None
        state = self._state(tp)
        # The position passes markers of transactions, and stays at the first that is still open.
        if state is None or state.position < state.highwater:
            return None
        return float(state.timestamp) / 1_000

    def ends(self) -> Iterator[tuple[TP, int, int]]:
        """Each partition that is read, its last stable offset and its high watermark, by the same answer."""
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

    def deep(self) -> Collection[Place]:
        """Partitions of which much was left to read when they were read last."""
        return [Place(*tp) for tp in self._deep]

    def ack(self, message: Message) -> bool:  # noqa: ARG002 -- Faust's signature
        """Do nothing: this is called by Faust's streams alone."""
        return False

    async def wait_first(self, *waited: Any, timeout: Any = None) -> WaitResults:
        """Wait for the first of several, and without Faust's four tasks if the first of all is done at once.

        Faust waits so for the delivery of every record, which only a full stream delays.
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
        """Go back to the group's offsets, and to the beginning of each partition that has none yet.

        Faust leaves the latter where reading stopped.
        """
        async with self._reading:
            for tp in self.assignment():
                # What was noted for an earlier assignment may never have reached the group.
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
            self._deep.clear()
            self._seeks += 1
            self._sought = True

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Message]]:
        """Records of one fetch, unless partitions have moved since."""
        async for tp, message in super().getmany(timeout):
            if self._is_changelog_tp(tp) or (self._sought and self._seeks_before_batch == self._seeks):
                yield tp, message

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Deliver nothing more until `perform_seek`."""
        self._sought = False
        await super().on_partitions_revoked(revoked)
        for tp in revoked:
            self._done.pop(tp, None)

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """Deliver nothing until `perform_seek`."""
        self._sought = False
        await super().on_partitions_assigned(assigned, generation_id)

    async def _commit_offsets(self, offsets: Mapping[TP, int], start_new_transaction: bool = True) -> bool:
        """Commit, and try again with the next turn what may not have reached the group.

        Faust notes an offset as committed even where the group has refused it, because it was being formed
        anew, and where partitions have moved meanwhile. Nothing corrects the note if they were sought while
        the answer was under way: the offset would stay uncommitted until the next event.
        """
        seeks = self._seeks
        committed: bool = await super()._commit_offsets(offsets, start_new_transaction)
        if not committed or seeks != self._seeks:
            for tp in offsets:
                self._committed_offset.pop(tp, None)
        return committed

    def _is_current(self, fetch: _Fetch) -> bool:
        return bool(self._sought and self._seeks == fetch.seeks and self.app.flow_control.is_active())

    def _to_message(self, tp: TP, record: Any) -> ConsumerMessage:
        if self._is_changelog_tp(tp):
            return super()._to_message(tp, record)
        return _Fetch(tp, record, self.app.consumer_generation_id, self._seeks)

    async def _getmany(self, active_partitions: set[TP] | None, timeout: float) -> Any:
        """What Faust makes messages of: the records of a changelog, and all at once of other partitions."""
        async with self._reading:
            self._seeks_before_batch = self._seeks
            active = active_partitions or set()
            full = {tp for tp in active if self._waiting[tp] >= _MOST_RECORDS_WAITING}
            # A set of its own, for Faust changes its one while the fetch waits; an empty one would mean
            # everything.
            wanted = active - full
            longest_s = min(timeout, _LOOK_AGAIN_S if full else _LONGEST_FETCH_S)
            if not wanted:
                await asyncio.sleep(longest_s)
                return {}
            records = await self._fetch_fairly(wanted, longest_s)
            self._deep |= full
            for tp, fetched in records.items():
                self._returned[tp] = fetched[-1].offset
                if not self._is_changelog_tp(tp):
                    self._waiting[tp] += len(fetched)
                    records[tp] = [fetched]
            self._pass_markers()
            return records

    def _pass_markers(self) -> None:
        """End the recovery of changelogs whose last offsets hold no record.

        Faust waits for a record at the last offset, and looks every five seconds whether it has seen it.
        That offset has no record if a transaction has ended there, or if the last record was compacted away.
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
                    continue  # records are on their way to the table
                if applied < end < state.position:
                    seen[tp] = end

    async def _fetch_fairly(self, wanted: set[TP], timeout: float) -> dict[TP, Any]:
        """A fetch in which no partition keeps others waiting, however much it holds.

        aiokafka returns at most so many records at once, of whatever partition it looks at first, and looks
        at them in the same order each time.
        """
        deep = self._deep & wanted
        records = (
            dict(await super()._getmany(wanted - deep, 0.0 if deep else timeout)) if wanted - deep else {}
        )
        for tp in sorted(deep):
            records.update(await super()._getmany({tp}, 0.0))
        self._deep = {tp for tp, fetched in records.items() if len(fetched) >= MOST_RECORDS_AT_ONCE // 2}
        return records

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Iterator[TP]:
        return (tp for tp in list(self._done) if topics is None or tp in topics or tp.topic in topics)

    def _new_offset(self, tp: TP) -> int | None:
        return self._done.get(tp)

    async def _add_gap(self, tp: TP, offset_from: int, offset_to: int) -> None:
        """Note nothing: a hole in the log is passed with the record after it."""


class PromptTables(TableManager):
    """Faust's manager of tables, without its second of waiting for tables that modules still define."""

    async def on_start(self) -> None:
        """Register the tables, all of which are defined before the application starts."""
        await self._update_channels()
        await self.recovery.start()


class ExactTransport(Transport):
    """The transport with this consumer."""

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
