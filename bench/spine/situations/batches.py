"""Bids that wait for a solver together, and its answer."""

import random
from collections.abc import Iterator

from bench.spine.cells import CELL, SLOT_S, UNIT
from bench.spine.situations import ZONE, CellHistory, Situation
from bench.spine.slow_bids import MarketShape, TaskShape, bid_for, configuration
from schemas.auction.batches import BatchProblem, BatchSolution, SolvedPlan
from schemas.auction.bids import DeadlineTerms
from schemas.auction.settings import TitanPolicy
from schemas.cells import CellConfigured
from schemas.clock import ClockTicked
from schemas.fleet import NodeOffline
from schemas.jobs import JobQuoteRequested
from schemas.solves import SolveFinished, SolveRequested

_POLICY = "titan"
_BUSY_SLOTS = 2


def batch_situations(rng: random.Random, jobs: int) -> Iterator[Situation]:
    """Yield situations of a zone of any size with `jobs` bids in a slot, before its request to the solver and
    before the answer."""
    shape = MarketShape(
        gpu_types=rng.randint(1, 4),
        tariffs=1,
        nodes=rng.choice((20, 100, 400)),
        slots=144,
        bids_before=0,
        seed=rng.randrange(2**31),
    )
    what = f"{shape.text}, {jobs} bids in a slot"
    history = CellHistory(_cell(shape), ("lora",))
    for number in range(jobs):
        task = _task(rng, shape)
        history.send(bid_for(f"bid{number}", task, int(UNIT * rng.uniform(1, 400))))
    tick = ClockTicked(cell=CELL, time_s=0.6 * SLOT_S)
    yield history.before(_POLICY, f"question: {what}", tick)
    request = next(outcome for outcome in history.send(tick) if isinstance(outcome, SolveRequested))
    yield history.before(_POLICY, f"plans: {what}", _answer(request))
    history.send(_answer(request))
    bid = bid_for("quoted", _task(rng, shape), UNIT)
    terms = DeadlineTerms(deadline_s=100 * SLOT_S)
    quoted = JobQuoteRequested(
        cell=CELL, quote_id="quote", user="user", zone=ZONE, workload=bid.workload, terms=terms
    )
    yield from history.before_each(
        _POLICY,
        (
            (f"slot begins: {what}", ClockTicked(cell=CELL, time_s=1.1 * SLOT_S)),
            (f"node lost: {what}", NodeOffline(cell=CELL, node="node0000")),
            (f"quote: {what}", quoted),
        ),
    )


def _cell(shape: MarketShape) -> CellConfigured:
    configured = configuration(shape)
    (zone,) = configured.zones
    titan = zone.model_copy(update={"policy": TitanPolicy(kind="titan")})
    return configured.model_copy(update={"zones": (titan,)})


def _task(rng: random.Random, shape: MarketShape) -> TaskShape:
    speed = rng.randint(500, 5_000)
    return TaskShape(
        speeds=(speed,) * shape.gpu_types,
        work_samples=_BUSY_SLOTS * speed,
        slots=rng.randint(10, shape.slots),
        memory_gib=rng.choice((2.0, 4.0)),
        needs_preprocessing=False,
    )


def _answer(request: SolveRequested) -> SolveFinished:
    """Return the answer by which each bid trains in the two slots from the next on, with the bids spread over
    all nodes."""
    problem = request.problem
    assert isinstance(problem, BatchProblem)
    nodes = [node for each in problem.classes for node in each.nodes]
    plans = tuple(
        SolvedPlan(
            job_id=bid.job_id,
            node_slots=tuple(
                (bid.ready_slot + 1 + slot, nodes[number % len(nodes)]) for slot in range(_BUSY_SLOTS)
            ),
        )
        for number, bid in enumerate(problem.bids)
    )
    solution = BatchSolution(status="feasible", plans=plans, bound_micros=None)
    return SolveFinished(cell=CELL, zone=ZONE, request_id=request.request_id, solution=solution, solve_s=0.1)
