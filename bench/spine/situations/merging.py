"""Fine-tuning jobs that may be merged: problems about them, and answers."""

import random
from collections.abc import Iterator

from bench.spine.cells import CELL
from bench.spine.situations import FREE, ZONE, CellHistory, Situation, cell_of
from schemas.base import Event, Outcome
from schemas.cells import GpuType, Node, Zone
from schemas.clock import ClockTicked
from schemas.fleet import NodeOffline
from schemas.jobs import JobSubmitted
from schemas.lora import Dataset
from schemas.merging.commands import ProfileOrdered
from schemas.merging.estimates import EstimateProblem, EstimateSolution, KindEstimate, TransferEstimate
from schemas.merging.problems import MergeProblem, MergeSolution, RivalProblem, Share
from schemas.merging.reports import MeasuredStep, TaskProfiled
from schemas.merging.settings import MergingPolicy, SchemeName
from schemas.merging.workload import MergingTerms, TrainingTarget, TuningHyperparameters, TuningWorkload
from schemas.profiles import ProfilePoint, ProfileReported
from schemas.solves import SolveFinished, SolveRequested
from streams.policies.merging.speeds import profile_key

_POLICY = "merging"
_GPUS = 8
_SCHEMES: tuple[SchemeName, ...] = ("ymir", "ymir", "ymir", "tiresias", "pollux")
_INTERVAL_S = 120.0


def merging_situations(rng: random.Random, jobs: int) -> Iterator[Situation]:
    """Yield situations of a zone with `jobs` jobs of few or of many kinds: before its request to the solver,
    and before the answer."""
    nodes, kinds = rng.choice((4, 32, 120)), rng.choice((1, 32, 128))
    scheme = rng.choice(_SCHEMES)
    what = f"{scheme}, {nodes * _GPUS} GPUs, {jobs} jobs of {kinds} kinds"
    history = CellHistory(cell_of(_zone(nodes, scheme)), ("tuner",))
    _submit(history, rng, jobs, kinds)
    request_s = 10 * _INTERVAL_S
    yield history.before(_POLICY, f"question: {what}", ClockTicked(cell=CELL, time_s=request_s))
    request = _answered(history, history.tick(request_s))
    if request is None:
        return
    plan = _plan(request)
    yield history.before(_POLICY, f"plan: {what}", plan)
    history.send(plan)
    later = ClockTicked(cell=CELL, time_s=2 * request_s)
    yield from history.before_each(
        _POLICY,
        (
            (f"next question: {what}", later),
            (f"node lost: {what}", NodeOffline(cell=CELL, node="n0")),
            (f"another job: {what}", _submitted("another", 0, rng)),
        ),
    )


def question_of(rng: random.Random, jobs: int, has_curves: bool) -> Situation:
    """Return the first question to a solver about `jobs` jobs of 128 kinds. With curves, measured steps of
    their shape on one to eight GPUs are published before."""
    history = CellHistory(cell_of(_zone(32, "ymir")), ("tuner",))
    if has_curves:
        history.publish(_published())
    _submit(history, rng, jobs, kinds=128)
    return history.before(_POLICY, "question", ClockTicked(cell=CELL, time_s=10 * _INTERVAL_S))


def _published() -> ProfileReported:
    """Return a profile that agrees with `_profile`."""
    workload = _workload(0)
    return ProfileReported(
        cell=CELL,
        zone=ZONE,
        profiler="bench",
        key=profile_key(workload, "bfloat16"),
        points=tuple(
            ProfilePoint(
                gpu_type="V",
                gpus=gpus,
                micro_batch_size=size,
                step_s=0.2 + 0.1 * size + 0.02 * (gpus - 1),
                exchange_s=0.02 * (gpus - 1),
                tokens_per_sample=20.0,
                steps=20,
            )
            for gpus in (1, 2, 4, 8)
            for size in (1, 4, 8)
        ),
    )


def _submit(history: CellHistory, rng: random.Random, jobs: int, kinds: int) -> None:
    """Submit jobs, the first of each kind with its profile run."""
    for number in range(kinds):
        _answered(history, history.send(_submitted(f"j{number}", number, rng)))
        _answered(history, history.tick(float(number)))
    for number in range(kinds, jobs):
        history.send(_submitted(f"j{number}", number % kinds, rng))


def _zone(nodes: int, scheme: SchemeName) -> Zone:
    return Zone(
        id=ZONE,
        base_model="tiny",
        base_model_memory_gib=0.5,
        gpu_types=(GpuType(name="V", samples_per_s=400.0, memory_gib=32.0 * _GPUS, gpus=_GPUS),),
        nodes=tuple(Node(id=f"n{number}", gpu_type="V", tariff=FREE.name) for number in range(nodes)),
        policy=MergingPolicy(scheme=scheme, interval_s=_INTERVAL_S, idle_interval_s=None, prewarm_s=0.0),
    )


def _submitted(job_id: str, kind: int, rng: random.Random) -> JobSubmitted:
    user = f"user{rng.randrange(50)}"
    return JobSubmitted(
        cell=CELL, job_id=job_id, user=user, zone=ZONE, workload=_workload(kind), terms=MergingTerms()
    )


def _workload(kind: int) -> TuningWorkload:
    return TuningWorkload(
        model="tiny",
        dataset=Dataset(path=f"d{kind}.jsonl", samples=800),
        validation_path=f"d{kind}.validation.jsonl",
        hyperparameters=TuningHyperparameters(batch_size=8),
        target=TrainingTarget(accuracy=0.8, most_iterations=1_000),
    )


def _answered(history: CellHistory, outcomes: list[Outcome]) -> SolveRequested | None:
    """Report profile runs and answer estimates; return a request for a plan, if there is one."""
    plan = None
    for outcome in outcomes:
        if isinstance(outcome, ProfileOrdered):
            plan = _answered(history, history.send(_profile(outcome))) or plan
        elif isinstance(outcome, SolveRequested) and isinstance(outcome.problem, EstimateProblem):
            plan = _answered(history, history.send(_estimates(outcome, outcome.problem))) or plan
        elif isinstance(outcome, SolveRequested):
            plan = outcome
    return plan


def _profile(ordered: ProfileOrdered) -> TaskProfiled:
    step = MeasuredStep(gpus=1, nodes=1, micro_batch_size=8, accumulation_steps=1, step_s=1.0, exchange_s=0.0)
    return TaskProfiled(
        cell=CELL,
        node=ordered.node,
        run_id=ordered.order.run_id,
        job_id=ordered.order.job_id,
        samples_done=0,
        losses=tuple(2.0 / (1 + number) for number in range(32)),
        embedding=(1.0, 2.0, 3.0),
        accuracy=0.1,
        steps=(step,),
        memory_gib=2.0,
        loader_s=0.5,
        dataset_samples=800,
    )


def _solved(request: SolveRequested, solution: EstimateSolution | MergeSolution) -> SolveFinished:
    return SolveFinished(cell=CELL, zone=ZONE, request_id=request.request_id, solution=solution, solve_s=0.1)


def _estimates(request: SolveRequested, problem: EstimateProblem) -> Event:
    """Return estimates by which every kind gains from every other."""
    kinds = range(len(problem.kinds))
    return _solved(
        request,
        EstimateSolution(
            kinds=tuple(KindEstimate(iterations=1_000, task=kind.task) for kind in problem.kinds),
            transfers=tuple(
                TransferEstimate(mode=mode, donor=a, receiver=b, receiver_gain=0.1, receiver_ratio=0.5)
                for mode in problem.modes
                for a in kinds
                for b in kinds
                if mode == "temporal" or a <= b
            ),
        ),
    )


def _plan(request: SolveRequested) -> Event:
    """Return a plan by which each GPU trains another job, and every second GPU two that are merged."""
    problem = request.problem
    assert isinstance(problem, MergeProblem | RivalProblem)
    waiting = list(problem.job_ids)
    shares = []
    for number in range(min(problem.gpus, len(waiting) // 2)):
        first, second = waiting[2 * number : 2 * number + 2]
        is_merged = number % 2 == 1 and isinstance(problem, MergeProblem)
        ids = (first, second) if is_merged else (first,)
        shares.append(Share(job_ids=ids, mode="temporal" if is_merged else "normal", gpus=1))
    return _solved(request, MergeSolution(shares=tuple(shares)))
