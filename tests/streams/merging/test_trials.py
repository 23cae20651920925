"""Trials: merges that are made to find out whether such merges pay, and what they may cost."""

from typing import Any

from schemas.merging.estimates import EstimateSolution
from schemas.merging.outcomes import MergeEvaluated
from schemas.merging.problems import MergeProblem, TransferPair
from schemas.merging.settings import MergingPolicy
from schemas.solves import SolveFinished, SolveRequested
from tests.support.merging_script import Script, of, share

ITERATIONS = 1_000
"""Iterations of each job; an epoch has 100."""
FINISHED = 8 * ITERATIONS
"""Samples of each job that is done before."""
BUDGET = 0.0025
ENOUGH = 10
"""Finished jobs whose samples, times the budget, are the two epochs that a trial may cost."""


class Untold(Script):
    """No merge has shown yet that any pays."""

    evidence = "trial"

    def estimates(self, asked: SolveRequested) -> SolveFinished:
        answer = super().estimates(asked)
        assert isinstance(answer.solution, EstimateSolution)
        transfers = tuple(
            one.model_copy(update={"evidence": self.evidence}) for one in answer.solution.transfers
        )
        return answer.model_copy(
            update={"solution": answer.solution.model_copy(update={"transfers": transfers})}
        )


def after(finished: int, **policy: Any) -> Untold:
    """A zone whose jobs so far are done, and that has four more: `a` nearly done, the others new."""
    script = Untold(**{"trial_budget": BUDGET, **policy})
    for number in range(finished):
        script.ready(f"z{number}", accuracy=0.8, epochs=80)
        script.plan(share(f"z{number}"))
        script.send(script.finished(f"z{number}", FINISHED))
    script.ready("a", "b", "c", "d", accuracy=0.8)
    script.plan(share("a"))
    script.send(script.progressed("a", 900))
    return script


def asked(script: Script) -> MergeProblem:
    problem = script.ask().problem
    assert isinstance(problem, MergeProblem)
    return problem


def jobs_of(problem: MergeProblem, one: TransferPair) -> tuple[list[str], list[str]]:
    """By name, those that may be its donor and its receiver."""

    def named(kind: int) -> list[str]:
        return [unit.job_ids[0] for unit in problem.units if unit.kind == kind]

    return named(one.donor), named(one.receiver)


def test_no_trial_precedes_jobs_that_pay() -> None:
    assert asked(after(ENOUGH - 1)).transfers == ()
    assert len(asked(after(ENOUGH)).transfers) == 1


def test_by_default_there_are_no_trials() -> None:
    assert asked(after(2 * ENOUGH, trial_budget=MergingPolicy().trial_budget)).transfers == ()


def test_trial_pairs_nearly_completed_donor_with_receiver() -> None:
    problem = asked(after(ENOUGH, modes=("temporal",)))
    (one,) = problem.transfers
    assert jobs_of(problem, one) == (["a"], ["b"])
    assert problem.most_later is not None


def test_long_donor_delays_no_receiver() -> None:
    script = after(ENOUGH, modes=("temporal",))
    script.send(script.finished("a", ITERATIONS))
    script.plan(share("b"))
    script.send(script.progressed("b", 100))
    assert asked(script).transfers == ()


def test_only_one_trial_runs_at_a_time() -> None:
    script = after(ENOUGH, modes=("temporal",))
    script.plan(share("a", "b", mode="temporal"))
    problem = asked(script)
    assert [jobs_of(problem, one) for one in problem.transfers] == [(["a"], ["b"])]


def test_waiting_receiver_counts_iterations_as_alone() -> None:
    """Else it would look nearly done as soon as the plan parts it from its donor."""
    script = after(ENOUGH, modes=("temporal",))
    script.plan(share("a", "b", mode="temporal"))
    waiting = next(unit for unit in asked(script).units if unit.job_ids == ("b",))
    assert waiting.iterations == ITERATIONS


def test_cost_of_undone_merges_reduces_trials() -> None:
    script = after(ENOUGH, modes=("temporal",))
    script.plan(share("a", "b", mode="temporal"))
    script.end("a", iterations=900)
    script.send(script.finished("a", ITERATIONS))
    undone = script.send(script.evaluated("b", 2, 0.05, partner="a"))
    assert [told.reason for told in of(MergeEvaluated, undone)] == ["undone"]
    script.end("b", iterations=200)
    script.plan(share("c"))
    script.send(script.progressed("c", 900))
    assert asked(script).transfers == ()


def test_evidence_decides_number_of_trials() -> None:
    for evidence, offered in (("none", False), ("shown", True)):
        script = after(ENOUGH)
        script.evidence = evidence
        script.ready("e", accuracy=0.8)
        assert (len(asked(script).transfers) > 1) == offered


def test_zone_may_merge_on_expected_gain() -> None:
    problem = asked(after(0, merges="expected"))
    assert len(problem.transfers) > 1
    assert problem.most_later is None
