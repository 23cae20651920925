"""The state that a gang must be in, from what was ordered and reported alone."""

from collections.abc import Set
from dataclasses import dataclass, field

MOST_FAILURES = 3

Process = tuple[str, int]
"""A node and the generation of its processes."""


@dataclass
class Specification:
    """The specification of one job."""

    work_samples: int
    all_report: bool = True
    """Whether all members report progress, or only the leader."""
    keeps_progress: bool = True
    """Whether a job resumes from a checkpoint."""
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

    def begin(self, nodes: tuple[str, ...], generation: int | None = None) -> None:
        """A generation, by default the next, begins on these nodes."""
        assert self.may_begin
        self.generation = self.generation + 1 if generation is None else generation
        self.in_force, self.done = nodes, set()
        self.leaders[self.generation] = nodes[0]
        self.alive |= {(node, self.generation) for node in nodes}

    def is_known(self, node: str, generation: int, finishes: bool = False) -> bool:
        """Return whether a report counts: of processes that may still run, or of all of the work done
        before."""
        if (node, generation) in self.alive:
            return True
        is_member = self.all_report and node in self.in_force and node not in self.done
        return finishes and is_member and generation < self.generation

    def started(self, node: str, generation: int, samples: int) -> None:
        """A leader in force has started."""
        if self._leads(node, generation):
            self._set(samples)

    progressed = started
    """A node reports its progress."""

    def finished(self, node: str, generation: int, samples: int) -> None:
        """All of the work is done, if the node is one that reports progress."""
        if not self._has_process(node, generation):
            self.ended(node, generation, samples)
            return
        if self.ending is None:
            self._set(samples)
            self.ending = "completed"
            self.in_force = ()
        self.alive.discard((node, generation))

    def ended(self, node: str, generation: int, samples: int) -> None:
        """Processes have ended: as ordered, with all of the work done, or too early."""
        self.alive.discard((node, generation))
        if node not in self.in_force or generation != self.generation:
            counts = self.keeps_progress and self._has_process(node, generation)
            if counts and self.ending is None and not self.in_force:
                self._set(samples)
        elif node != self.in_force[0] and (samples >= self.work_samples or not self.all_report):
            self.done.add(node)
        else:
            self._set(samples)
            self._return()

    def failed(self, node: str, generation: int, permanent: bool) -> None:
        """A run has failed on a node."""
        self.alive.discard((node, generation))
        if node in self.in_force and generation == self.generation:
            self._return()
            self.count_failure(permanent)

    def count_failure(self, permanent: bool) -> None:
        """A failure counts against the job."""
        self.failures += 1
        if permanent or self.failures >= MOST_FAILURES:
            self.ending = "refunded"

    def lost(self, node: str, kept: Set[int] = frozenset()) -> None:
        """A node is lost with all that it had, except the generations that it continues."""
        self.alive = {process for process in self.alive if process[0] != node or process[1] in kept}
        if node in self.in_force and self.generation not in kept:
            self._return()

    def withdrawn(self) -> None:
        """The user withdraws the job."""
        if self.ending is None:
            self.ending = "withdrawn"
            self.in_force = ()

    def preempted(self) -> None:
        """The zone has the processes end."""
        self._return()

    def _has_process(self, node: str, generation: int) -> bool:
        return self.all_report or self.leaders[generation] == node

    def _leads(self, node: str, generation: int) -> bool:
        return bool(self.in_force) and (node, generation) == (self.in_force[0], self.generation)

    def _return(self) -> None:
        """The job waits again, without its progress unless it keeps it."""
        self.in_force = ()
        if not self.keeps_progress:
            self.samples_done = 0

    def _set(self, samples: int) -> None:
        self.samples_done = min(samples, self.work_samples)
        if self.samples_done > self.furthest_samples:
            self.failures, self.furthest_samples = 0, self.samples_done
