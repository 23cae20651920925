"""The state that a gang must be in, and the decisions on it, from what was ordered and reported alone."""

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

MOST_FAILURES = 3
FIRST_DELAY_S = 5.0
"""Delay of the next run after the first refused or silent one; doubled with each further failure."""
TIMES_EXPECTED = 10.0
"""Factor on the silence that is expected of a run."""

Process = tuple[str, int]
"""A node and the generation of its processes."""


class Begin(NamedTuple):
    """Order to a node to begin processes."""

    node: str
    generation: int
    resume_samples: int


class End(NamedTuple):
    """Order to a node to end processes."""

    node: str
    generation: int
    cause: str


class Change(NamedTuple):
    """Decision that a job has other processes than before."""

    generation: int
    cause: str


Decided = Begin | End | Change


@dataclass
class Specification:
    """The specification of one job."""

    work_samples: int
    all_report: bool = True
    """Whether all members report progress, or only the leader."""
    keeps_progress: bool = True
    """Whether a job resumes from a checkpoint."""
    timeout_s: float = 0.0
    """Silence after which a run has failed, besides the expected one."""
    leaders: dict[int, str] = field(default_factory=dict)
    """By generation."""
    alive: set[Process] = field(default_factory=set)
    """Processes that were ordered, and of which neither the end is known nor the node was lost."""
    generation: int = 0
    in_force: tuple[str, ...] = ()
    """Nodes of the newest generation, the leader first, unless it was ordered to end or the work is done."""
    done: set[str] = field(default_factory=set)
    """Nodes in force that ended with all of the work done."""
    samples_done: int = 0
    furthest_samples: int = 0
    failures: int = 0
    ending: str | None = None
    """End of the job to come: `completed`, `refunded` or `withdrawn`."""
    is_time_over: bool = False
    """Whether it ends because its time is over: its leader may still report progress."""
    now_s: float = 0.0
    last_seen_s: float = 0.0
    """Time of the last order or report of the processes in force."""
    quiet_s: float = 0.0
    """Silence that is expected of them from then on."""
    released_s: float = 0.0
    """Time of the last order to end processes."""
    retry_s: float = 0.0
    """Time of the next run after a refused or silent one."""
    decided: list[Decided] = field(default_factory=list)
    """Decisions since they were last compared."""

    @property
    def may_begin(self) -> bool:
        """Nothing of a job is left on any node when it begins."""
        return not self.alive and not self.in_force and self.ending is None

    @property
    def is_over(self) -> bool:
        """A job is over once nothing of it is left on any node."""
        return self.ending is not None and not self.alive and not self.in_force

    @property
    def leader(self) -> str:
        """Leader of the newest generation."""
        return self.leaders.get(self.generation, "")

    @property
    def working(self) -> list[str]:
        """Nodes in force whose processes have not ended."""
        return [node for node in self.in_force if node not in self.done]

    @property
    def nodes(self) -> set[str]:
        """Nodes with processes in force, done or to end."""
        return {node for node, _ in self.alive} | {*self.in_force}

    def begin(self, nodes: Sequence[str], generation: int | None = None) -> None:
        """A generation, by default the next, begins on these nodes."""
        assert self.may_begin
        cause = "resumed" if self.generation else "started"
        self._begin(nodes, self.generation + 1 if generation is None else generation, cause, [])

    def resize(self, nodes: Collection[str], cause: str) -> None:
        """The next generation begins on these nodes, on those that had the present one first."""
        assert self.in_force
        stay = [node for node in self.in_force if node in nodes]
        left = [node for node in self.working if node not in nodes]
        ended = [End(node, self.generation, cause) for node in left]
        self.alive -= {(node, self.generation) for node in stay}
        for node in left:
            self._leaves(node)
        self._begin([*stay, *(node for node in nodes if node not in stay)], self.generation + 1, cause, ended)

    def is_known(self, node: str, generation: int, finishes: bool = False) -> bool:
        """Return whether a report counts: of processes that may still run, or of all of the work done
        before."""
        if (node, generation) in self.alive:
            return True
        is_member = self.all_report and node in self.in_force and node not in self.done
        return finishes and is_member and generation < self.generation

    def progressed(self, node: str, generation: int, samples: int) -> None:
        """A node reports the start or the progress of its processes. Those of a leader in force count."""
        if self._leads(node, generation):
            self._set(samples)

    def seen(self, node: str, generation: int, quiet_s: float) -> None:
        """A node has reported that its processes go on, and may then be silent for a while."""
        if self._leads(node, generation):
            self.last_seen_s, self.quiet_s = self.now_s, quiet_s

    def finished(self, node: str, generation: int, samples: int) -> None:
        """All of the work is done, if the node is one that reports progress. Processes of a newer generation
        are ordered to end; those of this one end by themselves."""
        if not self._has_process(node, generation):
            self.ended(node, generation, samples)
            return
        self.alive.discard((node, generation))
        if self.ending is None or self.is_time_over:
            self._set(samples)
            self.ending, self.is_time_over = "completed", False
            if generation == self.generation:
                self._leave_all()
            else:
                self._release("work_done")

    def ended(self, node: str, generation: int, samples: int) -> None:
        """Processes have ended: as ordered, with all of the work done, or too early."""
        self.alive.discard((node, generation))
        if node not in self.in_force or generation != self.generation:
            counts = self.keeps_progress and self._has_process(node, generation)
            if counts and (self.ending is None or self.is_time_over) and not self.in_force:
                self._set(samples)
        elif node != self.in_force[0] and (samples >= self.work_samples or not self.all_report):
            self._end_older(node)
            self.done.add(node)
        else:
            self._set(samples)
            self._return("run_failed", without=node)

    def failed(self, node: str, generation: int, permanent: bool, backs_off: bool = False) -> None:
        """A run has failed on a node. It waits before its next run, if this one did not begin."""
        self.alive.discard((node, generation))
        if node in self.in_force and generation == self.generation:
            self.count_failure(permanent)
            if backs_off:
                self.retry_s = self.now_s + FIRST_DELAY_S * 2.0 ** (self.failures - 1)
            self._return("run_failed" if self.ending is None else "given_up", without=node)

    def count_failure(self, permanent: bool) -> None:
        """A failure counts against the job."""
        self.failures += 1
        if permanent or self.failures >= MOST_FAILURES:
            self.ending = "refunded"

    def lost(self, node: str, kept: Set[int] = frozenset()) -> None:
        """A node is lost with all that it had, except the generations that it continues. It is ordered to end
        its processes all the same."""
        if node in self.in_force and self.generation not in kept:
            self._return("node_lost")
        self.alive = {process for process in self.alive if process[0] != node or process[1] in kept}

    def withdrawn(self) -> None:
        """The user withdraws the job."""
        if self.ending is None:
            self.ending = "withdrawn"
            self._release("withdrawn")

    def expired(self) -> None:
        """The time of the job is over. It has done its work if it has ever run."""
        if self.ending is None:
            self.ending, self.is_time_over = "completed" if self.generation else "refunded", True
            self._release("time_over")

    def preempted(self) -> None:
        """The zone has the processes end."""
        self._return("preempted")

    def tick(self, now_s: float) -> None:
        """A run that is silent for too long has failed, or has ended where it was to."""
        self.now_s = now_s
        if self.in_force and now_s - self.last_seen_s > self.timeout_s + TIMES_EXPECTED * self.quiet_s:
            self.failed(self.in_force[0], self.generation, permanent=False, backs_off=True)
        if now_s - self.released_s > self.timeout_s:
            self.alive = {process for process in self.alive if self._is_working(*process)}

    def _begin(self, nodes: Sequence[str], generation: int, cause: str, ended: Sequence[End]) -> None:
        self.generation, self.in_force, self.done = generation, tuple(nodes), set()
        self.leaders[generation] = nodes[0]
        self.alive |= {(node, generation) for node in nodes}
        self.last_seen_s, self.quiet_s = self.now_s, 0.0
        begun = [Begin(node, generation, self.samples_done) for node in nodes]
        self.decided += [Change(generation, cause), *ended, *begun]

    def _has_process(self, node: str, generation: int) -> bool:
        return self.all_report or self.leaders[generation] == node

    def _is_working(self, node: str, generation: int) -> bool:
        return generation == self.generation and node in self.working

    def _leads(self, node: str, generation: int) -> bool:
        return bool(self.in_force) and (node, generation) == (self.in_force[0], self.generation)

    def _return(self, cause: str, without: str | None = None) -> None:
        """The job waits again, without its progress unless it keeps it."""
        if self.in_force and not self.keeps_progress:
            self.samples_done = 0
        self._release(cause, without)

    def _release(self, cause: str, without: str | None = None) -> None:
        """All nodes in force are ordered to end their processes, except one, where they have ended."""
        if self.in_force:
            to_end = [node for node in self.working if node != without]
            self.decided.append(Change(self.generation, cause))
            self.decided += [End(node, self.generation, cause) for node in to_end]
            self._leave_all()

    def _leave_all(self) -> None:
        for node in self.working:
            self._leaves(node)
        self.in_force, self.done = (), set()

    def _leaves(self, node: str) -> None:
        """A node is to end its newest processes."""
        self._end_older(node)
        self.released_s = self.now_s

    def _end_older(self, node: str) -> None:
        """Older processes than those in force have ended on a node, which obeys orders in their order."""
        self.alive = {each for each in self.alive if each[0] != node or each[1] == self.generation}

    def _set(self, samples: int) -> None:
        self.samples_done = min(samples, self.work_samples)
        if self.samples_done > self.furthest_samples:
            self.failures, self.furthest_samples = 0, self.samples_done
