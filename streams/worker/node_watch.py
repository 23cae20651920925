"""Detection of nodes that go silent or online: only these changes enter the ledger, not all signs of life."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from schemas.codec import Envelope, rfc3339
from schemas.fleet import NodeHeartbeat, NodeSeen, NodeSilent
from schemas.topics import FLEET
from streams.cell.nodes import NodePool
from streams.kafka.records import Partition, ReadRecord
from streams.worker.cells import Cells
from streams.worker.flow import Flow
from streams.worker.intake import Accepted, Claim
from streams.worker.intake_queue import Waiting

LONGEST_STEP_S = 4.0
"""Longest interval between two reads that counts as listening. In a longer pause the worker did not listen,
or the broker accepted nothing."""
GRACE_S = 3.0
"""Longest wait after a pause for reports that are still in flight."""


SOURCE = "millrace/intake"
"""The CloudEvents source of the events that a worker adds."""
_WATCH_EVERY_S = 0.25
_CURRENT_S = 1.0
"""Longest age of a broker's answer that counts as current. A broker answers twenty times as often."""
_REPEAT_S = 10.0
"""Interval between reports of one change of a node: its cell may not have folded the first one yet."""


@dataclass
class _Listening:
    """Listening time of a partition of `fleet`."""

    resumed_s: float
    """Time at which listening began, or resumed after a pause."""
    paused_s: float
    """Time at which the last pause began."""
    last_s: float
    listened_s: float = 0.0
    read_s: float = 0.0
    """Part of the listening time after `last_s`."""
    appended_s: float | None = None
    """Time at which the newest record after `last_s` was appended, by the broker's clock."""


@dataclass(frozen=True)
class _Sign:
    last_seen_s: float
    listened_s: float
    """Listening time of the partition at the sign."""


class LivenessMonitor:
    """Signs of life of nodes, and the listening time of each partition of `fleet`.

    A node is silent when its cell's timeout has passed without a report, counted in listening time. There are
    two ways to listen:

    - The `fleet` partition is read to its end: time passes by the reader's clock.
    - More is left to read: time passes by the records, whose times of appending the broker sets.

    A worker that is suspended or has no broker does not listen, and that time counts for no node. So late
    reading delays the detection of a silent node, but never makes an online node count as silent.
    """

    def __init__(self, now_s: float) -> None:
        self._began_s = now_s
        self._listening: dict[int, _Listening] = {}
        self._signs: dict[tuple[str, str], _Sign] = {}
        """Latest signs, by cell and node."""

    def listen(self, partition: int, now_s: float) -> None:
        """Note that a partition is read to its present end; `now_s` never goes back."""
        listening = self._listening.get(partition)
        if listening is None:
            self._listening[partition] = _Listening(now_s, self._began_s, now_s)
            return
        step_s = now_s - listening.last_s
        if step_s > LONGEST_STEP_S:
            listening.paused_s, listening.resumed_s = listening.last_s, now_s
        else:
            listening.listened_s += max(0.0, step_s - listening.read_s)
        listening.last_s, listening.read_s, listening.appended_s = now_s, 0.0, None

    def read(self, partition: int, appended_s: float) -> None:
        """Note the time at which the broker appended the next record of a partition."""
        listening = self._listening.get(partition)
        if listening is None:
            return
        if listening.appended_s is not None:
            step_s = appended_s - listening.appended_s
            if 0 < step_s <= LONGEST_STEP_S:
                listening.listened_s += step_s
                listening.read_s += step_s
            appended_s = max(appended_s, listening.appended_s)
        listening.appended_s = appended_s

    def has_read_until(self, partition: int, appended_s: float) -> bool:
        """Return whether a record has been read that was appended at that time or later."""
        listening = self._listening.get(partition)
        return listening is not None and (listening.appended_s or 0.0) >= appended_s

    def note_sign(self, partition: int, cell: str, node: str, now_s: float) -> None:
        listening = self._listening.get(partition)
        self._signs[cell, node] = _Sign(now_s, 0.0 if listening is None else listening.listened_s)

    def silence_s(self, partition: int, cell: str, node: str) -> float:
        """Return the listening time of the partition since the node's last sign of life."""
        listening = self._listening.get(partition)
        if listening is None:
            return 0.0
        sign = self._signs.get((cell, node))
        return listening.listened_s - (0.0 if sign is None else sign.listened_s)

    def settled(self, partition: int, cell: str, nodes: Iterable[str], now_s: float) -> bool:
        """Return whether the reports of the nodes during the last pause count as read.

        They do once each node has given a sign since the pause began, or the grace after the pause is over.
        """
        listening = self._listening.get(partition)
        if listening is None:
            return False
        if now_s - listening.resumed_s >= GRACE_S:
            return True
        signs = (self._signs.get((cell, node)) for node in nodes)
        return all(sign is not None and sign.last_seen_s > listening.paused_s for sign in signs)

    def forget(self, now_s: float) -> None:
        """Forget all signs, as partitions are reassigned."""
        self._began_s = now_s
        self._listening.clear()
        self._signs.clear()


class NodeWatch:
    """The nodes of the cells that this worker folds."""

    def __init__(self, flow: Flow, cells: Cells, fleet: str) -> None:
        """Begin without signs of life.

        Args:
            fleet: full name of the topic that nodes report to.
        """
        self._flow = flow
        self._cells = cells
        self._fleet = fleet
        self._clocks = flow.clocks
        self._monitor = LivenessMonitor(flow.clocks.monotonic_s())
        self._reported: dict[tuple[str, str, type[NodeSeen | NodeSilent]], float] = {}
        """Time of the last report of a change, by cell, node and type."""

    async def run(self) -> None:
        """Report nodes that have become silent. Never returns."""
        while True:
            await asyncio.sleep(_WATCH_EVERY_S)
            for name in self._cells.names():
                nodes, partition = self._nodes_of(name), self._partition_of(name)
                if nodes is None:
                    continue
                self._listens(partition)
                timeout_s = nodes.layout.owned.node_timeout_s
                for node in nodes.watched:
                    silence_s = self._monitor.silence_s(partition, name, node)
                    if silence_s > timeout_s:
                        self._report(NodeSilent(cell=name, node=node, silent_s=round(silence_s, 3)))

    def read(self, record: ReadRecord) -> None:
        """Note the time of a record, if a node sent it."""
        if record.topic == self._fleet and record.is_broker_time and record.timestamp_ms is not None:
            self._monitor.read(record.partition, record.timestamp_ms / 1_000)

    def may_have(self, cell_name: str, node: str) -> bool:
        """Return whether a cell may have a node; False if it lacks the node, whose reports would fill the
        ledger."""
        nodes = self._nodes_of(cell_name)
        return nodes is None or nodes.zone_of(node) is not None

    def heartbeat(self, event: NodeHeartbeat) -> None:
        """Note a heartbeat, and report the node if its cell waits for it."""
        self.note_sign(event.cell, event.node)
        nodes = self._nodes_of(event.cell)
        if nodes is not None and nodes.awaits(event):
            self._report(NodeSeen(**dict(event)))

    def note_sign(self, cell_name: str, node: str) -> None:
        nodes, now_s = self._nodes_of(cell_name), self._clocks.monotonic_s()
        if nodes is not None and nodes.zone_of(node) is not None:
            self._monitor.note_sign(self._partition_of(cell_name), cell_name, node, now_s)

    def may_tick(self, tick: Waiting) -> bool:
        """Return whether the nodes' reports before a tick are read, or the wait for them is over."""
        now_s = self._clocks.monotonic_s()
        if now_s - tick.read_s >= GRACE_S:
            return True
        partition = self._partition_of(tick.cell)
        if not (self._listens(partition) or self._has_passed(partition, tick)):
            return False
        nodes = self._nodes_of(tick.cell)
        watched = () if nodes is None else nodes.watched
        return self._monitor.settled(partition, tick.cell, watched, now_s)

    def release(self) -> None:
        """Forget all signs, as partitions are reassigned."""
        self._monitor.forget(self._clocks.monotonic_s())
        self._reported.clear()

    def _nodes_of(self, name: str) -> NodePool | None:
        """Return the nodes of a cell; None before it is configured."""
        cell = self._cells.cell(name)
        return None if cell is None else cell.nodes

    def _partition_of(self, cell: str) -> int:
        return self._flow.intake.partition_of(cell)

    def _has_passed(self, partition: int, tick: Waiting) -> bool:
        """Return whether a record of `fleet` has been read that is later than a tick."""
        timestamp_ms = None if tick.source is None else tick.source.timestamp_ms
        return timestamp_ms is not None and self._monitor.has_read_until(partition, timestamp_ms / 1_000)

    def _listens(self, partition: int) -> bool:
        """Return whether all reports of the nodes of a partition's cells are read."""
        until_s = self._flow.read_until_s(Partition(self._fleet, partition))
        if until_s is None or abs(self._clocks.unix_s() - until_s) > _CURRENT_S:
            return False
        self._monitor.listen(partition, self._clocks.monotonic_s())
        return True

    def _report(self, event: NodeSeen | NodeSilent) -> None:
        """Add an event to the ledger, after the node's own reports."""
        now_s, about = self._clocks.monotonic_s(), (event.cell, event.node, type(event))
        if now_s - self._reported.get(about, -_REPEAT_S) < _REPEAT_S:
            return
        self._reported[about] = now_s
        unix_s = self._clocks.unix_s()
        id = f"{event.TYPE.split('.')[2]}-{event.node}-{unix_s:.3f}"
        envelope = Envelope(id, SOURCE, rfc3339(int(unix_s * 1_000)), event)
        claim = Claim(event.cell, f"{FLEET}/{event.node}", type(event))
        self._flow.wait(claim, None, Accepted(event, self._flow.intake.ledger_record(envelope)))
