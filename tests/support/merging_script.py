"""A merging zone that gets all events one by one: nodes' reports, and solvers' answers."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from schemas.base import Event, Outcome
from schemas.cells import CellConfigured
from schemas.changes import ZoneConfigured
from schemas.fleet import NodeOnline, NodeSilent, RunFailed, RunFinished, RunProgressed
from schemas.merging.commands import TransferMode
from schemas.merging.estimates import (
    EstimateProblem,
    EstimateSolution,
    KindEstimate,
    LossFault,
    TransferEstimate,
)
from schemas.merging.problems import MergeSolution, Share
from schemas.merging.reports import MeasuredStep, TaskEvaluated, TaskProfiled
from schemas.solves import SolveFinished, SolveRequested
from tests.support.cells import Bench
from tests.support.merging import CELL, MODEL, MergingBench, answer, merging_cell, submit, tick
from tests.support.twins import ZONE

Kind = TypeVar("Kind", bound=Outcome)

INTERVAL_S = 120.0
BATCH = 8
STEPS_PER_EPOCH = 100
"""Batch size and steps of the jobs of `submit`."""
RATIO = 0.5
"""Part of their iterations that receivers are forecast to save."""
FALLING = tuple(2.0 - 0.1 * number for number in range(12))


def of(kind: type[Kind], outcomes: Iterable[Outcome]) -> list[Kind]:
    """Return the outcomes of one kind, in order."""
    return [outcome for outcome in outcomes if isinstance(outcome, kind)]


def share(*job_ids: str, gpus: int = 1, mode: TransferMode | None = None) -> Share:
    return Share(job_ids=job_ids, gpus=gpus, mode=mode or ("normal" if len(job_ids) == 1 else "temporal"))


class Script:
    """One node by default, so that it is clear who is where; plans are asked for at intervals only.

    Estimates are answered at once: jobs need all that they may have, and merges save half of it.
    """

    def __init__(
        self,
        nodes: int = 1,
        gpus: int = 4,
        cell: CellConfigured | None = None,
        bench: Bench | None = None,
        **policy: Any,
    ) -> None:
        self.bench = bench or MergingBench()
        self.time_s = 0.0
        self.asked: SolveRequested | None = None
        """The plan that was asked for last."""
        self.curve_fault: LossFault | None = None
        """Reason for which estimates count all loss curves as useless."""
        defaults = {"interval_s": INTERVAL_S, "idle_interval_s": None, "prewarm_s": 0.0}
        self.send(cell or merging_cell(nodes, gpus, **{**defaults, **policy}), tick(0.0))

    def send(self, *events: Event) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for event in events:
            decided = self.bench.send(event)
            outcomes += decided
            for asked in of(SolveRequested, decided):
                if isinstance(asked.problem, EstimateProblem):
                    outcomes += self.send(self.estimates(asked))
                else:
                    self.asked = asked
        return outcomes

    def tick(self, time_s: float) -> list[Outcome]:
        self.time_s = time_s
        return self.send(tick(time_s))

    def job(self, job_id: str) -> dict[str, Any]:
        """Its state as `millrace state` shows it."""
        return self.bench.job(job_id)

    @property
    def kinds(self) -> dict[str, dict[str, Any]]:
        """Kinds of jobs that the zone has, by key."""
        return self.bench.described["knowledge"]["kinds"]

    def ready(self, *job_ids: str, **fields: Any) -> None:
        """Jobs that wait for GPUs: profiled, each of a kind of its own unless `data` is given."""
        for job_id in job_ids:
            self.send(submit(job_id, **{"data": job_id, "accuracy": None, **fields}))
            if self.job(job_id)["stage"] == "profiling":
                self.send(self.profile(job_id))
        self.tick(self.time_s)

    def plan(self, *shares: Share) -> list[Outcome]:
        """A solver's answer to the question of the next interval."""
        return self.answer(*shares, asked=self.ask())

    def ask(self) -> SolveRequested:
        """The question of the next interval."""
        self.asked = None
        self.tick((self.time_s // INTERVAL_S + 1) * INTERVAL_S)
        assert self.asked is not None, "no plan is asked for"
        return self.asked

    def answer(self, *shares: Share, asked: SolveRequested) -> list[Outcome]:
        return self.send(self.solved(asked, MergeSolution(shares=shares)))

    def solve(self) -> list[Outcome]:
        """Send a solver's answer to the question of the next interval."""
        return self.send(answer(self.ask()))

    def reconfigure(self, **policy: Any) -> list[Outcome]:
        """The zone gets other settings."""
        zone = self.bench.cell.configuration.zones[0]
        changed = zone.model_copy(update={"policy": zone.policy.model_copy(update=policy)})
        return self.send(ZoneConfigured(cell=CELL, zone=changed))

    @staticmethod
    def solved(asked: SolveRequested, solution: Any) -> SolveFinished:
        return SolveFinished(
            cell=CELL, zone=ZONE, request_id=asked.request_id, solution=solution, solve_s=0.1
        )

    def estimates(self, asked: SolveRequested) -> SolveFinished:
        problem = asked.problem
        assert isinstance(problem, EstimateProblem)
        kinds = range(len(problem.kinds))
        transfers = [
            TransferEstimate(mode=mode, donor=a, receiver=b, receiver_gain=0.1, receiver_ratio=RATIO)
            for mode in problem.modes
            for a in kinds
            for b in kinds
            if mode == "temporal" or a <= b
        ]
        return self.solved(
            asked,
            EstimateSolution(
                kinds=tuple(
                    KindEstimate(iterations=kind.most_iterations, fault=self.curve_fault)
                    for kind in problem.kinds
                ),
                transfers=tuple(transfers),
            ),
        )

    def profile(self, job_id: str, **changes: Any) -> TaskProfiled:
        """Return the report of a job's profile run."""
        return TaskProfiled(
            **{
                **self._place(job_id),
                "samples_done": 0,
                "losses": FALLING,
                "embedding": (1.0, 2.0, 3.0),
                "accuracy": 0.1,
                "steps": (
                    MeasuredStep(
                        gpus=1,
                        nodes=1,
                        micro_batch_size=BATCH,
                        accumulation_steps=1,
                        step_s=1.0,
                        exchange_s=0.0,
                    ),
                ),
                "memory_gib": 2.0,
                "loader_s": 0.5,
                "dataset_samples": 800,
                **changes,
            }
        )

    def evaluated(
        self, job_id: str, epochs: float, accuracy: float, phase: Any = "own", **changes: Any
    ) -> TaskEvaluated:
        """Return the evaluation of a job that runs, or of the receiver of one that does."""
        iterations = int(epochs * STEPS_PER_EPOCH) if phase == "own" else 0
        return TaskEvaluated(
            **{
                **self._place(job_id),
                "samples_done": iterations * BATCH,
                "iterations": iterations,
                "epochs": epochs,
                "loss": None,
                "accuracy": accuracy,
                "phase": phase,
                "partner": None,
                "step": None,
                **changes,
            }
        )

    def progressed(
        self, job_id: str, iterations: int, complete: bool = False, run: str = ""
    ) -> RunProgressed:
        """Return the progress of the run that a job is in, or of another one."""
        return RunProgressed(
            **self._place(job_id, run), samples_done=BATCH * iterations, node_s=1.0, complete=complete
        )

    def finished(self, job_id: str, iterations: int, run: str = "") -> RunFinished:
        return RunFinished(
            **self._place(job_id, run),
            samples_done=BATCH * iterations,
            adapter_path=f"{job_id}/adapter",
            adapter_digest="0" * 64,
        )

    def failed(self, job_id: str, permanent: bool = False, run: str = "") -> RunFailed:
        return RunFailed(
            **self._place(job_id, run), samples_done=0, error="out of memory", permanent=permanent
        )

    def end(self, *job_ids: str, iterations: int) -> list[Outcome]:
        """Send reports that released runs have ended."""
        outcomes: list[Outcome] = []
        for job_id in job_ids:
            for run in ending_runs(self.job(job_id)):
                outcomes += self.send(self.progressed(job_id, iterations, complete=True, run=run))
        return outcomes

    def _place(self, job_id: str, run: str = "") -> dict[str, Any]:
        job = self.job(job_id)
        run_id = run or job["run_id"]
        node = ending_runs(job).get(run_id, job["leader"])
        assert node, f"{job_id} has no run"
        return {"cell": CELL, "node": node, "run_id": run_id, "job_id": job_id}


def ending_runs(job: Mapping[str, Any]) -> dict[str, str]:
    """Nodes, by the id of the run that each is to end and has not reported the end of."""
    return {f"{leaving['generation']}/{job['job_id']}": node for node, leaving in job["leaving"].items()}


def online(node: str) -> NodeOnline:
    return NodeOnline(cell=CELL, node=node, base_model=MODEL, runners=("tuner",))


def silent(node: str) -> NodeSilent:
    return NodeSilent(cell=CELL, node=node, silent_s=60.0)
