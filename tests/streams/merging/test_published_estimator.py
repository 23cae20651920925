"""A zone that estimates as printed, with the solver's answers on its live path."""

from schemas.decisions import JobCompleted
from schemas.merging.estimates import EstimateProblem, EstimateSolution
from schemas.merging.outcomes import JobForetold
from schemas.solves import SolveFinished, SolveRequested
from solvers.merging.loss_curve import LossCurve, fit_loss_curve
from solvers.merging.published import iterations_to_converge
from tests.support.merging import World, answer, merging_cell, submit
from tests.support.merging_script import of


def test_jobs_are_forecast_by_flat_loss_and_complete():
    asked: list[EstimateProblem] = []
    answers: list[EstimateSolution] = []

    def solve(request: SolveRequested) -> tuple[float, SolveFinished]:
        found = answer(request)
        if isinstance(request.problem, EstimateProblem):
            asked.append(request.problem)
            assert isinstance(found.solution, EstimateSolution)
            answers.append(found.solution)
        return 0.1, found

    cell = merging_cell(estimator="published", merges="expected", profile_iterations=64)
    world = World(cell, answers=solve)
    jobs = [submit(f"{data}{number}", data=data) for data in "ab" for number in range(3)]
    outcomes = world.send(*jobs) + world.run_until_idle()
    assert len(of(JobCompleted, outcomes)) == len(jobs)
    assert {problem.estimator for problem in asked} == {"published"}
    for problem, solution in zip(asked, answers, strict=True):
        for facts, kind in zip(problem.kinds, solution.kinds, strict=True):
            curve = fit_loss_curve(facts.losses)
            assert isinstance(curve, LossCurve)
            assert kind.iterations == iterations_to_converge(curve, facts.most_iterations)
    flat = {kind.iterations for solution in answers for kind in solution.kinds}
    estimated = [each for each in of(JobForetold, outcomes) if each.reason in ("estimated", "kind_finished")]
    assert estimated
    assert {each.iterations for each in estimated} <= flat, "finished jobs do not change it"
