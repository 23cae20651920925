"""One job on one node: its ranks there, from their command to the report that they are gone."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from executors.moe.ranks.kinds import RANK_WORK
from executors.moe.ranks.messages import (
    WORDS,
    Ended,
    Failed,
    Joined,
    Placed,
    Progress,
    RankOrder,
    Release,
    Told,
    Verdict,
)
from executors.moe.settings import MoeSettings
from executors.node.runner import Clock
from executors.workers.membership import Membership
from executors.workers.processes import WorkerProcess, exit_status
from schemas.experts.commands import RanksAssigned
from schemas.experts.reports import ExpertsProfiled, ExpertsRouted
from schemas.fleet import FleetEvent, RunFailed, RunFinished, RunProgressed, RunReport, RunStarted

_FAILURE_GRACE_S = 15.0
"""So long the ranks of a job may take to end when one of them has failed."""
_KILL_MARGIN_S = 0.5
"""Processes are killed so long before they must be gone."""
_REPORTS: dict[str, type[RunReport]] = {report.TYPE: report for report in (ExpertsProfiled, ExpertsRouted)}
"""What ranks may have passed on."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Workplace:
    """What the jobs of a node share."""

    cell: str
    node: str
    state_root: Path
    output_root: Path
    settings: MoeSettings
    clock: Clock
    report: Callable[[FleetEvent], None]
    free_gpus: list[int]
    """Not in use by any rank, in order."""


def local_ranks(command: RanksAssigned) -> range:
    """The ranks of the command's node; empty if it has none."""
    first = 0
    for member in command.members:
        if member.node == command.node:
            return range(first, first + member.ranks)
        first += member.ranks
    return range(0)


@dataclass
class _RankProcess:
    process: WorkerProcess[Joined | Progress | Told | Ended | Failed]
    gpu: int
    has_joined: bool = False
    last_word: Ended | Failed | None = None


@dataclass
class JobOnNode:
    """Obeys the commands for a job in one generation, and reports what becomes of it. See `advance`.

    Attributes:
        command: its assignment.
        verdict: what was said about its end; None while it runs, or if it has failed.
        over: whether its end has been reported and nothing of it runs here any more.
    """

    command: RanksAssigned
    place: Workplace
    verdict: Verdict | None = None
    over: bool = False
    _ranks: list[_RankProcess] = field(default_factory=list)
    _vacant: list[int] = field(default_factory=list)
    _kill_s: float | None = None
    _failures: list[Failed] = field(default_factory=list)
    _endings: list[Ended] = field(default_factory=list)
    _loss: float | None = None
    _node_s: float = 0.0

    def __post_init__(self) -> None:
        self.samples_done = self.command.resume_samples
        """That would be left of the job if it ended now."""
        self._vacant = list(local_ranks(self.command))

    @property
    def needed_bytes(self) -> int | None:
        """What a disk had no room for, if that ended it."""
        return next((each.needed_bytes for each in self._failures if each.needed_bytes is not None), None)

    @property
    def pids(self) -> list[int]:
        """Of its processes here."""
        return [rank.process.pid for rank in self._ranks]

    def place_experts(self, placed: Placed) -> None:
        """Have the ranks here know of a standing placement."""
        for rank in self._ranks:
            rank.process.tell(placed)

    def release(self, verdict: Verdict, by_s: float) -> None:
        """Have all ranks here go, at the latest at `by_s`."""
        self.verdict = verdict
        kill_s = by_s - _KILL_MARGIN_S
        self._kill_s = kill_s if self._kill_s is None else min(kill_s, self._kill_s)
        self._vacant = []
        for rank in self._ranks:
            rank.process.tell(Release(verdict=verdict))

    def kill(self, verdict: Verdict) -> None:
        """Have all ranks here go at once."""
        self.verdict = verdict
        self._vacant = []
        for rank in self._ranks:
            rank.process.kill()

    def advance(self) -> None:
        """Hear the ranks, start those that there is room for, and report what has changed."""
        for rank in list(self._ranks):
            is_alive = rank.process.is_alive  # before its words, so that none is missed
            for word in rank.process.words():
                self._hear(rank, word)
            if not is_alive:
                self._bury(rank)
        if self._kill_s is not None and self.place.clock.time_s() >= self._kill_s:
            for rank in self._ranks:
                rank.process.kill()
        while self._vacant and self.place.free_gpus:
            self._start(self._vacant.pop(0))
        if not self._ranks and not self._vacant:
            self._report_end()
            self.over = True

    # Ranks

    def _start(self, rank: int) -> None:
        place, command = self.place, self.command
        gpu = place.free_gpus.pop(0)
        order = RankOrder(
            cell=place.cell,
            node=place.node,
            run_id=command.run_id,
            job_id=command.job_id,
            user=command.user,
            workload=command.workload,
            membership=Membership(
                generation=command.generation,
                rank=rank,
                world=sum(member.ranks for member in command.members),
            ),
            resume_samples=command.resume_samples,
            report_interval_s=command.report_interval_s,
            revision=command.revision,
            placement=command.placement,
            state_root=place.state_root,
            output_root=place.output_root,
            gpu=gpu,
            **place.settings.model_dump(include=set(RankOrder.model_fields)),
        )
        try:
            process = WorkerProcess(
                RANK_WORK[command.workload.kind], order, WORDS, f"{command.job_id}-rank-{rank}"
            )
        except (OSError, EOFError) as error:
            place.free_gpus.insert(0, gpu)
            self._fail(Failed(error=f"no rank process can be started: {error}", permanent=False))
            return
        self._ranks.append(_RankProcess(process, gpu))

    def _hear(self, rank: _RankProcess, word: Joined | Progress | Told | Ended | Failed) -> None:
        match word:
            case Joined():
                if not any(each.has_joined for each in self._ranks):
                    # All say the same: less than was told where a checkpoint has been lost.
                    self.samples_done = word.samples_done
                rank.has_joined = True
                if all(each.has_joined for each in self._ranks) and not self._vacant:
                    self._report_start(word)
            case Progress():
                self.samples_done, self._loss, self._node_s = word.samples_done, word.loss, word.node_s
                self._report_progress(complete=False)
            case Told():
                # Strict, as JSON says nothing of tuples: so by its text.
                self.place.report(_REPORTS[word.type].model_validate(word.data, strict=False))
            case Ended() | Failed():
                rank.last_word = word

    def _bury(self, rank: _RankProcess) -> None:
        self._ranks.remove(rank)
        rank.process.close()
        self.place.free_gpus.append(rank.gpu)
        self.place.free_gpus.sort()
        word = rank.last_word
        if isinstance(word, Ended):
            self._endings.append(word)
        elif self.verdict is None:
            how = exit_status(rank.process.exit_code)
            self._fail(word or Failed(error=f"a rank has ended with {how} and no word", permanent=False))

    def _fail(self, failure: Failed) -> None:
        if not self._failures:
            self._kill_s = self.place.clock.time_s() + _FAILURE_GRACE_S
            for rank in self._ranks:
                rank.process.tell(Release(verdict="stop"))
        self._vacant = []
        self._failures.append(failure)

    # Reports

    def _report_start(self, word: Joined) -> None:
        self.place.report(
            RunStarted(**self._about(), samples_done=self.samples_done, dataset_samples=word.dataset_samples)
        )
        experts: dict[str, object] = {}
        if word.experts_per_device is not None:
            experts = word.model_dump(include={"experts_per_device", "resident_experts"})
        self._say(
            "run started", generation=self.command.generation, samples_done=self.samples_done, **experts
        )

    def _report_progress(self, *, complete: bool) -> None:
        self.place.report(
            RunProgressed(
                **self._about(),
                samples_done=self.samples_done,
                loss=self._loss,
                node_s=self._node_s,
                complete=complete,
            )
        )

    def _report_end(self) -> None:
        answer = next((word for word in self._endings if word.answers), None)
        for word in self._endings:
            self._loss, self._node_s = word.loss, max(word.node_s, self._node_s)
            self.samples_done = max(word.samples_done, self.samples_done)
        if answer is not None:
            self.place.report(
                RunFinished(
                    **self._about(),
                    samples_done=answer.samples_done,
                    loss=answer.loss,
                    adapter_path=answer.adapter_path,
                    adapter_digest=answer.adapter_digest,
                )
            )
            self._say("run finished", samples_done=answer.samples_done)
        elif self._failures and self.verdict is None:
            failure = min(self._failures, key=lambda each: (not each.permanent, each.cause == "peer"))
            self.place.report(
                RunFailed(
                    **self._about(),
                    samples_done=self.samples_done,
                    error=failure.error,
                    permanent=failure.permanent,
                )
            )
            self._say("run failed", permanent=failure.permanent, error=repr(failure.error))
        else:
            self._report_progress(complete=True)
            self._say("run over", verdict=self.verdict, samples_done=self.samples_done)

    def _about(self) -> dict[str, Any]:
        place, command = self.place, self.command
        return {
            "cell": place.cell,
            "node": place.node,
            "run_id": command.run_id,
            "job_id": command.job_id,
        }

    def _say(self, what: str, **fields: object) -> None:
        rest = "".join(f" {name}={value}" for name, value in fields.items())
        _log.info("%s job=%s run=%s%s", what, self.command.job_id, self.command.run_id, rest)
