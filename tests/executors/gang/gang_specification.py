"""The ranks of gangs on a node, from what was ordered and what the ranks did alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

FAILURE_GRACE_S = 15.0
"""Time in which the other ranks save their state after one of them has failed."""
KILL_MARGIN_S = 0.5
LEAVES = -1
"""Number of a rank that has no place in the newest generation."""

Verdict = Literal["leave", "stop", "discard"]


class Joins(NamedTuple):
    """Directive to a rank: its place in a newer generation."""

    generation: int
    rank: int
    world: int


class Ends(NamedTuple):
    """Directive to a rank: to end."""

    verdict: str


class Reported(NamedTuple):
    """Report of a run: `started`, `progressed`, or how it ended."""

    run_id: str
    kind: Literal["started", "progressed", "over", "finished", "failed"]
    samples_done: int
    is_permanent: bool = False


class Failure(NamedTuple):
    is_permanent: bool
    by_peer: bool


@dataclass
class SpecifiedRank:
    """A process of a gang."""

    gpu: int
    rank: int
    directives: list[Joins | Ends]
    """By their order, its place at its start first."""
    joined: int = 0
    """Last generation that it took part in."""
    is_killed: bool = False
    outbox: list[Any] = field(default_factory=list)
    """Messages that the node has not received yet."""
    is_alive: bool = True

    def kill(self) -> None:
        self.is_killed, self.is_alive = self.is_killed or self.is_alive, False


@dataclass
class SpecifiedGang:
    """The ranks of one job on the node, from one generation to the next."""

    command: Any
    members: Sequence[tuple[str, int]]
    keeps: bool
    """Whether the job keeps checkpoints."""
    repeats: bool
    """Whether progress is reported though no more samples are done."""
    samples: int
    vacant: list[int] = field(default_factory=list)
    """Ranks that are to get a process."""
    running: list[SpecifiedRank] = field(default_factory=list)
    verdict: Verdict | None = None
    failures: list[Failure] = field(default_factory=list)
    kill_s: float | None = None
    is_gone: bool = False
    """Whether all ranks of the job, on any node, have stopped at one step."""
    has_begun: bool = False
    started: int = 0
    """Last generation whose start was reported."""
    started_run: str = ""
    reported_samples: int = 0
    result: int | None = None
    """Samples of the finished job, if this node reports it."""

    @property
    def world(self) -> int:
        """Number of ranks on all nodes."""
        return sum(count for _, count in self.members)

    @property
    def is_over(self) -> bool:
        return not self.running and not self.vacant

    @property
    def goes_on(self) -> bool:
        """Whether its end is neither ordered nor caused by a failure."""
        return self.verdict is None and not self.failures

    @property
    def is_ending(self) -> bool:
        return self.is_gone or not self.goes_on

    @property
    def kept_samples(self) -> int:
        return self.samples if self.keeps else 0

    @property
    def failure(self) -> Failure | None:
        """The failure that is reported: a permanent one first, and one of a rank here before a lost peer."""
        if self.verdict is not None or not self.failures:
            return None
        return min(self.failures, key=lambda each: (not each.is_permanent, each.by_peer))

    @property
    def final_samples(self) -> int:
        """Samples of a run that ends as ordered: of a job without checkpoints none, unless other ranks
        continue it, or its work is done."""
        continues = self.verdict == "leave" and not self.is_gone
        is_done = self.samples == self.command.workload.total_samples
        return self.samples if continues or is_done else self.kept_samples

    def release(self, verdict: Verdict, by_s: float) -> None:
        """All ranks are to end by a time."""
        self.verdict, self.vacant = verdict, []
        self._kill_at(by_s - KILL_MARGIN_S)
        self._send(Ends(verdict))

    def kill(self, verdict: Verdict) -> None:
        self.verdict, self.vacant = verdict, []
        for rank in self.running:
            rank.kill()

    def fail(self, failure: Failure, now_s: float) -> None:
        """One rank cannot continue: the others stop."""
        if not self.failures:
            self._kill_at(now_s + FAILURE_GRACE_S)
            self._send(Ends("stop"))
        self.vacant = []
        self.failures.append(failure)

    def assign(self, command: Any, members: Sequence[tuple[str, int]], ranks: Sequence[int]) -> None:
        """The present ranks continue in a newer generation, as many as have a place in it: those with the
        job's state first."""
        self.command, self.members = command, members
        staying = sorted(self.running, key=lambda each: (-each.joined, each.rank))
        for place, each in enumerate(staying):
            if place < len(ranks):
                each.rank = ranks[place]
                each.directives.append(Joins(command.generation, each.rank, self.world))
            else:
                each.rank = LEAVES
                each.directives.append(Ends("leave"))
        self.vacant = [*ranks[len(staying) :]]

    def report_start(self) -> list[Reported]:
        """A generation has started once all of its ranks here take part, or its result is known."""
        here = [rank for rank in self.running if rank.rank != LEAVES]
        is_complete = bool(here) and all(rank.joined == self.command.generation for rank in here)
        if self.started == self.command.generation or self.vacant:
            return []
        if self.result is None and (not is_complete or self.is_ending):
            return []
        self.started, self.started_run = self.command.generation, self.command.run_id
        self.reported_samples = self.samples
        return [Reported(self.started_run, "started", self.samples)]

    def joined(self, rank: SpecifiedRank, generation: int, samples: int) -> list[Reported]:
        is_first = not any(each.joined for each in self.running)
        rank.joined = generation
        self.samples = samples if is_first else max(samples, self.samples)
        return self.report_start()

    def progressed(self, rank: SpecifiedRank, samples: int, leads: bool) -> list[Reported]:
        if not rank.joined:
            return []
        self.samples = max(samples, self.samples)
        if not leads or not self.started or (self.samples == self.reported_samples and not self.repeats):
            return []
        self.reported_samples = self.samples
        return [Reported(self.started_run, "progressed", self.samples)]

    def ended(self, rank: SpecifiedRank, reason: str, samples: int, answers: bool) -> None:
        """A rank has ended in order."""
        if rank.joined:
            self.samples = max(samples, self.samples)
        if answers:
            self.result = samples
        if reason != "left":
            self.vacant, self.is_gone = [], True
        elif rank.rank != LEAVES and not self.is_ending:
            self.vacant.append(rank.rank)  # it had left when the node assigned it again

    def end(self) -> Reported:
        """Return the report of its end."""
        run_id, failure = self.command.run_id, self.failure
        if self.result is not None:
            return Reported(run_id, "finished", self.result)
        if failure is not None:
            return Reported(run_id, "failed", self.kept_samples, failure.is_permanent)
        return Reported(run_id, "over", self.final_samples)

    def _send(self, directive: Ends) -> None:
        for rank in self.running:
            rank.directives.append(directive)

    def _kill_at(self, kill_s: float) -> None:
        self.kill_s = kill_s if self.kill_s is None else min(kill_s, self.kill_s)


@dataclass
class GangsSpecification:
    """All gangs of a node."""

    node: str
    gpus: int
    verdicts: Mapping[str, Verdict]
    """By the reason of a release."""
    release_grace_s: float
    stop_grace_s: float
    gangs: list[SpecifiedGang] = field(default_factory=list)
    """By their arrival."""
    ranks: list[SpecifiedRank] = field(default_factory=list)
    """All by their start."""
    free_gpus: list[int] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    """Jobs with files on the shared disk."""
    reports: list[Reported] = field(default_factory=list)
    restored: list[Reported] = field(default_factory=list)
    """Ends of the runs of the process before, to be reported."""
    has_room: bool = True
    """Whether processes can be started."""

    def of(self, job_id: str) -> list[SpecifiedGang]:
        return [gang for gang in self.gangs if gang.command.job_id == job_id]

    def newest(self, job_id: str) -> int | None:
        """Return the newest generation of a job here."""
        return max((gang.command.generation for gang in self.of(job_id)), default=None)

    @property
    def held(self) -> list[str]:
        """Runs that the node continues."""
        return sorted(gang.command.run_id for gang in self.gangs if gang.goes_on)

    def ranks_of(self, members: Sequence[tuple[str, int]]) -> list[int]:
        """Return the ranks of this node."""
        counts = dict(members)
        before = 0
        for member, count in members:
            if member == self.node:
                break
            before += count
        return list(range(before, before + counts[self.node]))

    def assign(
        self, gang: SpecifiedGang, members: Sequence[tuple[str, int]], now_s: float, continues: bool
    ) -> None:
        """A newer assignment of a job: its present ranks continue, or end before the new ones begin."""
        has_continued = False
        for each in self.of(gang.command.job_id):
            if not continues:
                each.kill(each.verdict or "stop")
            elif each.is_ending:
                each.release(each.verdict or "stop", now_s + self.stop_grace_s)
            else:
                each.assign(gang.command, members, self.ranks_of(members))
                has_continued = True
        if not has_continued:
            gang.vacant = self.ranks_of(members)
            self.gangs.append(gang)

    def release(self, job_id: str, generation: int, reason: str, by_s: float) -> None:
        """The cell orders the end of a job's ranks, up to a generation."""
        verdict, present = self.verdicts[reason], self.of(job_id)
        for each in present:
            if each.command.generation > generation:
                continue
            if verdict == "leave" and each.command.generation != generation:
                continue  # its ranks have a place in a newer generation
            if reason == "node_lost":
                each.kill(verdict)
            else:
                each.release(verdict, by_s)
        if not present and verdict == "discard":
            self.files.discard(job_id)

    def disown(self, run_id: str) -> None:
        """The cell has no such run."""
        for each in self.gangs:
            if each.command.run_id == run_id:
                each.kill(each.verdict or "stop")

    def close(self, now_s: float) -> None:
        """The node stops: ranks save their state, unless nothing is to be kept."""
        for each in self.gangs:
            each.release("discard" if each.verdict == "discard" else "stop", now_s + self.stop_grace_s)

    def advance(self, now_s: float) -> None:
        """The node processes what its ranks have sent, ends and begins gangs."""
        self.reports += self.restored
        self.restored = []
        for gang in self.gangs:
            if gang.has_begun:
                self._advance(gang, now_s)
        for gang in [gang for gang in self.gangs if gang.is_over]:
            self._conclude(gang)
        taken = set[str]()
        for gang in self.gangs:
            if not gang.has_begun and gang.command.job_id not in taken:
                self._advance(gang, now_s)
            taken.add(gang.command.job_id)  # a later one resumes from its checkpoint

    def restart(self) -> None:
        """The node's process begins again, without ranks, and reports the ends of all runs."""
        for gang in self.gangs:
            how: Literal["failed", "over"] = "failed" if gang.verdict is None else "over"
            self.restored.append(Reported(gang.command.run_id, how, gang.kept_samples))
        self.gangs, self.ranks, self.free_gpus = [], [], list(range(self.gpus))

    def _advance(self, gang: SpecifiedGang, now_s: float) -> None:
        gang.has_begun = True
        for rank in list(gang.running):
            self._receive(gang, rank, now_s)
        if gang.kill_s is not None and now_s >= gang.kill_s:
            for rank in gang.running:
                rank.kill()
        while gang.vacant and self.free_gpus:
            number, gpu = gang.vacant.pop(0), self.free_gpus.pop(0)
            if self.has_room:
                place = Joins(gang.command.generation, number, gang.world)
                gang.running.append(SpecifiedRank(gpu, number, [place]))
                self.ranks.append(gang.running[-1])
            else:
                self.free_gpus.insert(0, gpu)
                gang.fail(Failure(is_permanent=False, by_peer=False), now_s)
        self.reports += gang.report_start()

    def _receive(self, gang: SpecifiedGang, rank: SpecifiedRank, now_s: float) -> None:
        """Process what a rank has sent, its final message after its end."""
        final: Any = ("failed", Failure(is_permanent=False, by_peer=False))
        for message in rank.outbox:
            match message:
                case ("joined", generation, samples):
                    self.reports += gang.joined(rank, generation, samples)
                case ("progressed", samples, leads):
                    self.reports += gang.progressed(rank, samples, leads)
                case _:
                    final = message
        rank.outbox = []
        if rank.is_alive:
            return
        gang.running.remove(rank)
        self.free_gpus = sorted([*self.free_gpus, rank.gpu])
        match final:
            case ("ended", reason, samples, answers):
                gang.ended(rank, reason, samples, answers)
            case ("failed", failure) if gang.verdict is None and not gang.is_gone:
                gang.fail(failure, now_s)

    def _conclude(self, gang: SpecifiedGang) -> None:
        self.gangs.remove(gang)
        self.reports.append(gang.end())
        is_last = gang.failure is not None and gang.failure.is_permanent and len(gang.members) == 1
        if gang.verdict == "discard" or is_last:
            self.files.discard(gang.command.job_id)
