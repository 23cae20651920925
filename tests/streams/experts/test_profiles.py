"""Step and dispatch times of trainings, from runs of their kind by number of ranks."""

from typing import Any

from schemas.base import Outcome
from schemas.decisions import JobAdmitted
from schemas.experts.commands import RanksAssigned
from schemas.experts.outcomes import QueuedRanks
from schemas.experts.workload import GatingRule
from schemas.profiles import MeasuredSteps
from tests.support.moe import MoeBench, finished, moe_cell, progressed, submit, tick, training

BATCH = 32


def step_s(ranks: int) -> float:
    """The true step: 50 ms a sequence, and dispatches of 20 ms and 10 ms for each further rank."""
    return BATCH / ranks * 0.05 + dispatch_s(ranks)


def dispatch_s(ranks: int) -> float:
    return 0.02 + 0.01 * (ranks - 1) if ranks > 1 else 0.0


def place(outcomes: list[Outcome]) -> QueuedRanks:
    (admitted,) = [outcome for outcome in outcomes if isinstance(outcome, JobAdmitted)]
    assert isinstance(admitted.evidence, QueuedRanks)
    return admitted.evidence


class Runs:
    """A zone in which trainings run one after the other."""

    def __init__(self) -> None:
        self.bench = MoeBench()
        self.time_s = 0.0
        self.bench.send(moe_cell(), tick(0.0))

    def run(self, job_id: str, ranks: int, user: str = "ann", tokens: float = 40.0, **changes: Any) -> None:
        self.time_s += 10.0
        sent = self.bench.send(submit(job_id, training(ranks, **changes), user=user), tick(self.time_s))
        orders = [outcome for outcome in sent if isinstance(outcome, RanksAssigned)]
        leader = orders[0]
        measured = MeasuredSteps(
            micro_batch_size=-(-BATCH // ranks),
            step_s=step_s(ranks),
            tokens_per_sample=tokens,
            steps=10,
            precision="float32",
            gpus=ranks,
            samples_per_step=BATCH,
            exchange_s=dispatch_s(ranks),
        )
        report = progressed(leader, BATCH)
        self.bench.send(report.model_copy(update={"measured": measured}), *map(finished, orders))

    def ask(self, job_id: str, ranks: int, user: str = "ann", **changes: Any) -> QueuedRanks:
        return place(self.bench.send(submit(job_id, training(ranks, **changes), user=user)))


def test_times_of_other_ranks_follow_from_two_runs() -> None:
    runs = Runs()
    assert runs.ask("before", 1).step_s is None
    runs = Runs()
    runs.run("one", 1)
    runs.run("two", 2)
    expected = runs.ask("next", 2)
    assert expected.step_s is not None
    assert abs(expected.step_s / step_s(2) - 1) < 0.05
    assert expected.dispatch_s is not None
    assert abs(expected.dispatch_s / dispatch_s(2) - 1) < 0.05
    assert expected.running_s is not None
    assert expected.duration_error_pct == 10.0


def test_run_of_another_user_alone_does_not_count() -> None:
    runs = Runs()
    runs.run("one", 1, user="eve")
    assert runs.ask("next", 1).step_s is None


def test_short_records_do_not_count() -> None:
    runs = Runs()
    runs.run("bait", 1, tokens=1.0)
    assert runs.ask("next", 1).step_s is None


def test_other_probabilities_of_threshold_are_another_kind() -> None:
    runs, gating = Runs(), {"mode": "adaptive", "threshold": 0.5}
    runs.run("one", 1, gating=GatingRule(**gating, threshold_on="all"))
    for on in ("chosen", None):
        assert runs.ask(f"on-{on}", 1, gating=GatingRule(**gating, threshold_on=on)).step_s is None
    assert runs.ask("same", 1, gating=GatingRule(**gating, threshold_on="all")).step_s is not None


def test_known_steps_change_evidence_alone() -> None:
    """A profile run before a training would bring its admission a forecast, and nothing else."""
    decided = []
    for tokens in (40.0, 1.0):
        runs = Runs()
        runs.run("one", 1, tokens=tokens)
        sent = runs.bench.send(submit("next", training(2)), submit("last", training(4)), tick(20.0))
        expected = [place([outcome]).step_s for outcome in sent if isinstance(outcome, JobAdmitted)]
        assert [step_s is not None for step_s in expected] == [tokens == 40.0] * 2
        decided.append([outcome for outcome in sent if not isinstance(outcome, JobAdmitted)])
    assert decided[0] == decided[1] != []
