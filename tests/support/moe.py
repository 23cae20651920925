"""Experts zones for tests: a small cell, its jobs, and nodes that obey their commands."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from schemas.base import HOURS_PER_DAY, Outcome
from schemas.cells import Borrower, CellConfigured, GpuType, Lending, Node, Tariff, Zone
from schemas.clock import ClockTicked
from schemas.commands import Command
from schemas.decisions import NodeMoved
from schemas.experts.commands import ExpertsPlaced, RanksAssigned, RanksReleased
from schemas.experts.reports import ExpertsProfiled, ExpertsRouted, LayerRouting
from schemas.experts.settings import ExpertsPolicy
from schemas.experts.workload import ExpertsTerms, MoeServeWorkload, MoeTrainWorkload, Requests
from schemas.fleet import FleetEvent, NodeOnline, RunFailed, RunFinished, RunProgressed, RunStarted
from schemas.jobs import JobSubmitted, JobWithdrawalRequested
from schemas.lora import Dataset
from streams.policies.inference.kind import InferencePolicy
from tests.support.twins import ZONE, TwinBench

CELL, LENDER = "c", "infer"
GPUS = 2
"""GPUs of each node."""
INTERVAL_S = 10.0
GPU = GpuType(name="A100", samples_per_s=4.0, memory_gib=80.0, gpus=GPUS)
SKEWED = (8_000, 500, 500, 500, 200, 100, 100, 100)
TURNED = tuple(reversed(SKEWED))
EVEN = (1_250,) * 8


class MoeBench(TwinBench):
    """See `TwinBench`."""

    def counted(self) -> tuple[Any, int]:
        zone = next(zone for zone in self.cell.nodes.layout.zones.values() if zone.id == ZONE)
        return self.zone.state(), self.cell.live_jobs_bytes + zone.policy.state_bytes(zone)


def moe_cell(nodes: int = 2, lendable: int = 0, **policy: Any) -> CellConfigured:
    """A cell of an experts zone, with nodes n0, n1, ... of two GPUs, and one that lends it i0, i1, ..."""
    zones = (moe_zone(nodes, **policy),)
    return CellConfigured(
        cell=CELL,
        epoch_s=0.0,
        slot_s=600.0,
        tariffs=(Tariff(name="flat", micros_per_kwh=(0,) * HOURS_PER_DAY),),
        zones=(*zones, _lending_zone(lendable)) if lendable else zones,
    )


def _lending_zone(nodes: int) -> Zone:
    return Zone(
        id=LENDER,
        base_model="any",
        base_model_memory_gib=0.5,
        gpu_types=(GPU,),
        nodes=tuple(Node(id=f"i{number}", gpu_type=GPU.name, tariff="flat") for number in range(nodes)),
        policy=InferencePolicy(),
        lending=Lending(headroom=0.0, notice_s=120.0, borrowers=(Borrower(zone=ZONE),)),
    )


def moe_zone(nodes: int = 2, **policy: Any) -> Zone:
    defaults = {"report_interval_s": INTERVAL_S, "lasting_reports": 2, "cool_down_s": 0.0}
    return Zone(
        id=ZONE,
        base_model="any",
        base_model_memory_gib=0.5,
        gpu_types=(GPU,),
        nodes=tuple(Node(id=f"n{number}", gpu_type=GPU.name, tariff="flat") for number in range(nodes)),
        policy=ExpertsPolicy(**{**defaults, **policy}),
    )


def training(ranks: int = 2, samples: int = 1_000, **fields: Any) -> MoeTrainWorkload:
    return MoeTrainWorkload(
        work_samples=samples,
        model="tiny",
        dataset=Dataset(path="data.jsonl", samples=100),
        ranks=ranks,
        **fields,
    )


def serving(ranks: int = 4, requests: int | None = 1_000, until_s: float | None = None, **fields: Any) -> Any:
    asked = Requests(dataset=Dataset(path="prompts.jsonl", samples=100), most=requests, until_s=until_s)
    return MoeServeWorkload(model="tiny", requests=asked, ranks=ranks, **fields)


def submit(job_id: str, workload: MoeTrainWorkload | MoeServeWorkload, user: str = "ann") -> JobSubmitted:
    return JobSubmitted(
        cell=CELL, job_id=job_id, user=user, zone=ZONE, workload=workload, terms=ExpertsTerms()
    )


def withdraw(job_id: str, user: str = "ann") -> JobWithdrawalRequested:
    return JobWithdrawalRequested(cell=CELL, job_id=job_id, user=user)


def tick(time_s: float) -> ClockTicked:
    return ClockTicked(cell=CELL, time_s=time_s)


def place_of(command: RanksAssigned | RanksReleased, samples_done: int = 0) -> dict[str, Any]:
    run_id = f"{command.generation}/{command.job_id}"
    return {
        "cell": CELL,
        "node": command.node,
        "run_id": run_id,
        "job_id": command.job_id,
        "samples_done": samples_done,
    }


def started(command: RanksAssigned) -> RunStarted:
    return RunStarted(**place_of(command, command.resume_samples))


def progressed(command: RanksAssigned, samples_done: int, complete: bool = False) -> RunProgressed:
    return RunProgressed(**place_of(command, samples_done), node_s=0.0, complete=complete)


def finished(command: RanksAssigned, samples_done: int = 1_000) -> RunFinished:
    return RunFinished(**place_of(command, samples_done))


def failed(command: RanksAssigned, permanent: bool = False, error: str = "out of memory") -> RunFailed:
    return RunFailed(**place_of(command), error=error, permanent=permanent)


def gone(command: RanksReleased, samples_done: int = 0) -> RunProgressed:
    """The ranks of a generation have left a node."""
    return RunProgressed(**place_of(command, samples_done), node_s=0.0, complete=True)


def _layers(*tokens: Sequence[int]) -> tuple[LayerRouting, ...]:
    return tuple(LayerRouting(tokens=tuple(layer)) for layer in tokens)


def profiled(command: RanksAssigned, *tokens: Sequence[int]) -> ExpertsProfiled:
    return ExpertsProfiled(
        **place_of(command), layers=_layers(*tokens), path_length=3, paths=10, accuracy=0.7
    )


def routed(
    command: RanksAssigned, *tokens: Sequence[int], revision: int = 0, samples_done: int = 0
) -> ExpertsRouted:
    return ExpertsRouted(
        **place_of(command, samples_done),
        layers=_layers(*tokens),
        batches=10,
        interval_s=INTERVAL_S,
        revision=revision,
    )


def online(node: str) -> NodeOnline:
    return NodeOnline(cell=CELL, node=node, base_model="any", runners=("moe",))


class ObedientNodes:
    """Nodes' reports to each command, which the caller sends one by one, when it likes, in the order in which
    each node makes them."""

    def __init__(self) -> None:
        self.due: dict[str, deque[FleetEvent]] = {}
        """By node."""
        self.leading: dict[str, RanksAssigned] = {}
        """The command to the leader of each job that runs."""
        self.revisions: dict[str, int] = {}
        """Revision of the placement that each job's leader received."""

    def obey(self, outcomes: list[Outcome]) -> None:
        """Take commands on."""
        for command in outcomes:
            if isinstance(command, RanksAssigned):
                self.publish(started(command))
                if command.members[0].node == command.node:
                    self.leading[command.job_id] = command
                    self.revisions[command.job_id] = command.revision
            elif isinstance(command, ExpertsPlaced):
                assert command.revision >= self.revisions[command.job_id]
                self.revisions[command.job_id] = command.revision
            elif isinstance(command, NodeMoved) and command.to_zone == ZONE:
                self.publish(online(command.node))
            elif isinstance(command, RanksReleased):
                self.publish(gone(command))
                self.leading.pop(command.job_id, None)

    def end(self, job_id: str) -> None:
        """A job's work is done."""
        leader = self.leading.pop(job_id)
        total = leader.workload.total_samples or 7
        self.publish(finished(leader, total))
        for member in leader.members[1:]:
            other = leader.model_copy(update={"node": member.node})
            self.publish(progressed(other, total, complete=True))

    def lose(self, node: str) -> None:
        """Lose a node, with all of its reports that are not sent."""
        self.due.pop(node, None)
        for job_id, command in list(self.leading.items()):
            if any(member.node == node for member in command.members):
                del self.leading[job_id]

    def next_report(self, node: str) -> FleetEvent:
        """Return a node's next report."""
        report = self.due[node].popleft()
        if not self.due[node]:
            del self.due[node]
        return report

    def publish(self, report: FleetEvent) -> None:
        """Add a node's report after its earlier ones."""
        self.due.setdefault(report.node, deque()).append(report)


def commands(outcomes: list[Outcome]) -> list[Command]:
    return [outcome for outcome in outcomes if isinstance(outcome, Command)]
