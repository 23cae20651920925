"""One job on one node: its ranks there, from their command to the report that they are gone."""

from dataclasses import replace

from executors.gang.job_processes import JobProcess, JobProcesses
from executors.gang.membership import Members, Membership
from executors.gang.messages import Ended, Failed
from executors.gang.node import GangNode
from executors.gang.reports import RunReports, Standing
from executors.moe.ranks.kinds import RANK_WORK
from executors.moe.ranks.messages import WORDS, Joined, MoeRankOrder, Progress, RankWord, Told
from executors.moe.settings import MoeSettings
from executors.processes.forked_process import ForkedProcess
from schemas.experts.commands import RanksAssigned
from schemas.experts.reports import ExpertsProfiled, ExpertsRouted
from schemas.fleet import RunReport

_REPORTS: dict[str, type[RunReport]] = {report.TYPE: report for report in (ExpertsProfiled, ExpertsRouted)}
"""What ranks may have passed on."""


def members_of(command: RanksAssigned) -> Members:
    """The nodes of a generation."""
    return Members(tuple((member.node, member.ranks) for member in command.members))


class JobOnNode:
    """A job in one generation. See `executors.gang.jobs.Job`."""

    def __init__(self, command: RanksAssigned, place: GangNode[MoeSettings]) -> None:
        self.command = command
        ranks = members_of(command).ranks_of(command.node)
        self.processes: JobProcesses[RankWord] = JobProcesses(place, ranks, self._start)
        self._place = place
        self._reports = RunReports(place, command.job_id)
        self._standing = Standing(command.resume_samples)
        self._answer: Ended | None = None

    @property
    def members(self) -> Members:
        """Of the newest generation."""
        return members_of(self.command)

    @property
    def kept_samples(self) -> int:
        """What would be left of the job if it ended now."""
        return self._standing.samples_done

    def advance(self) -> None:
        """Hear the ranks, start those that there is room for, and report what has changed."""
        for rank, word in self.processes.hear():
            self._hear(rank, word)
        self.processes.tend()

    def report_end(self) -> None:
        """Report what has become of it: no rank of it runs here any more."""
        run_id = self.command.run_id
        if self._answer is not None:
            self._reports.finished(run_id, self._answer)
        elif (failure := self.processes.failure) is not None:
            self._reports.failed(run_id, self.kept_samples, failure)
        else:
            self._reports.over(run_id, self._standing, self.processes.verdict)

    def _start(self, rank: int, gpu: int) -> ForkedProcess[RankWord]:
        command = self.command
        world = members_of(command).world
        order = self._place.order(
            MoeRankOrder,
            command,
            Membership(generation=command.generation, rank=rank, world=world),
            gpu,
            run_id=command.run_id,
            workload=command.workload,
            report_interval_s=command.report_interval_s,
            revision=command.revision,
            placement=command.placement,
        )
        return ForkedProcess(RANK_WORK[command.workload.kind], order, WORDS, f"{command.job_id}-rank-{rank}")

    def _hear(self, rank: JobProcess[RankWord], word: RankWord) -> None:
        match word:
            case Joined():
                self._join(rank, word)
            case Progress():
                self._standing = Standing(word.samples_done, word.loss, word.node_s)
                self._reports.progressed(self.command.run_id, self._standing)
            case Told():
                # Strict, as JSON says nothing of tuples: so by its text.
                self._place.report(_REPORTS[word.type].model_validate(word.data, strict=False))
            case Ended():
                self._part(word)
            case Failed() if self.processes.verdict is None:
                self.processes.fail(word)

    def _join(self, rank: JobProcess[RankWord], word: Joined) -> None:
        command, running = self.command, self.processes.running
        if not any(each.joined for each in running):
            # All say the same: less than was told where a checkpoint has been lost.
            self._standing = replace(self._standing, samples_done=word.samples_done)
        rank.joined = command.generation
        if all(each.joined for each in running) and not self.processes.vacant:
            experts: dict[str, object] = {}
            if word.experts_per_device is not None:
                experts = word.model_dump(include={"experts_per_device", "resident_experts"})
            samples_done = self._standing.samples_done
            self._reports.started(
                command.run_id, command.generation, samples_done, word.dataset_samples, **experts
            )

    def _part(self, word: Ended) -> None:
        if word.answers:
            self._answer = word
        samples_done = max(word.samples_done, self._standing.samples_done)
        self._standing = Standing(samples_done, word.loss, max(word.node_s, self._standing.node_s))
