"""Whatever is killed, lost, repeated, delayed or overtaken between a cell and its nodes: once that is over,
every job ends in bounded time, and no run that the cell does not have keeps a GPU.

The cell, the node service and the runners for elastic, experts and merging zones are the real ones. The
runner for the auction is a model of the real one (`LightSlots`), and so are worker processes, the commands'
log, the reports and the broker: see `tests.support.disturbed`.
"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.base import Event
from schemas.jobs import JobWithdrawalRequested
from tests.support import cells, elastic, merging, moe
from tests.support.disturbed.nodes import CELL
from tests.support.disturbed.runners import ElasticRunners, LoraRunners, MoeRunners, TunerRunners
from tests.support.disturbed.world import NO_TROUBLES, Troubles, World
from tests.support.examples import LONG

NODES, GPUS = 3, 2
TIMEOUT_S = 60.0
TROUBLED_S = 240
JOBS = 6
ENDS_WITHIN_S = 4_000
"""After the troubles: some attempts of a job, each of which may be silent for the whole timeout."""
QUIET_S = 90
"""Time after the last job: until nodes have received the order to end runs that the cell does not have."""
SEEDS = 60 if LONG else 2

Make = Callable[[pytest.MonkeyPatch, Path, random.Random], World]


def auction(_monkeypatch: pytest.MonkeyPatch, root: Path, rng: random.Random) -> World:
    return World(cells.configuration(), LoraRunners(), root, rng)


def of_elastic(monkeypatch: pytest.MonkeyPatch, root: Path, rng: random.Random) -> World:
    cell = elastic.elastic_cell(NODES, interval_s=10.0, order_timeout_s=TIMEOUT_S)
    return World(cell, ElasticRunners(monkeypatch, elastic.GPUS), root, rng)


def of_experts(monkeypatch: pytest.MonkeyPatch, root: Path, rng: random.Random) -> World:
    cell = moe.moe_cell(NODES, order_timeout_s=TIMEOUT_S)
    return World(cell, MoeRunners(monkeypatch, moe.GPU.gpus), root, rng)


def of_merging(gpus: int, nodes: int) -> Make:
    def make(_monkeypatch: pytest.MonkeyPatch, root: Path, rng: random.Random) -> World:
        cell = merging.merging_cell(
            nodes, gpus, order_timeout_s=TIMEOUT_S, interval_s=20.0, profile_limit_s=10.0, prewarm_s=5.0
        )
        return World(cell, TunerRunners(gpus), root, rng, merging.answer)

    return make


def job(world: World, number: int, rng: random.Random) -> Event:
    """A job of the world's policy, for a run or some of half a minute."""
    name, user = f"j{number}", rng.choice(["ann", "ben"])
    match world.cell.zones[0].policy.kind:
        case "auction":
            deadline_s = world.clock.now_s + rng.choice([40.0, 60.0])
            return cells.bid(name, 500.0, user, deadline_s=deadline_s)
        case "elastic":
            most = rng.choice([1, 2, 6])
            keeps = rng.random() < 0.7
            return elastic.submit(name, 30.0, (1, most), user, keeps_checkpoints=keeps)
        case "experts" if rng.random() < 0.5:
            return moe.submit(name, moe.training(rng.choice([1, 2, 3])), user)
        case "experts":
            until_s = rng.choice([None, world.clock.now_s + 400.0])
            return moe.submit(name, moe.serving(rng.choice([1, 2]), until_s=until_s), user)
    return merging.submit(name, user, rng.choice("abc"), gpus=rng.choice([1, 2]), epochs=1)


@pytest.fixture(
    params=[
        pytest.param(auction, id="auction"),
        pytest.param(of_elastic, id="elastic"),
        pytest.param(of_merging(GPUS, NODES), id="merging"),
        pytest.param(of_merging(1, 1), id="merging on one GPU"),
        pytest.param(of_experts, id="experts"),
    ]
)
def make(request: pytest.FixtureRequest) -> Make:
    return request.param


def disturbed(make: Make, monkeypatch: pytest.MonkeyPatch, root: Path, seed: int) -> World:
    """A world in which everything has gone wrong for a while, with jobs that came meanwhile."""
    rng = random.Random(seed)
    world = make(monkeypatch, root, rng)
    world.run(5)
    world.troubles = Troubles()
    for number in range(JOBS):
        world.fold(f"job-{number}", job(world, number, rng))
        world.run(TROUBLED_S / JOBS)
        if rng.random() < 0.2:
            live = list(world.state.jobs.live.values())
            for each in live[:1]:
                withdrawal = JobWithdrawalRequested(cell=CELL, job_id=each.job_id, user=each.user)
                world.fold(f"withdrawal-{number}", withdrawal)
    world.troubles = NO_TROUBLES
    if seed % 2:
        # The test does not wait for long runs that the cell does not have: they must end by its command.
        for each in list(world.state.jobs.live.values()):
            withdrawal = JobWithdrawalRequested(cell=CELL, job_id=each.job_id, user=each.user)
            world.fold(f"late-withdrawal-{each.job_id}", withdrawal)
    return world


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_job_ends_and_no_gpu_is_kept(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int
) -> None:
    world = disturbed(make, monkeypatch, tmp_path, seed)
    for _ in range(ENDS_WITHIN_S // 20):
        if not world.state.jobs.live:
            break
        world.run(20)
    assert not world.state.jobs.live, world.occupied()
    world.run(QUIET_S)
    assert world.occupied() == {}
