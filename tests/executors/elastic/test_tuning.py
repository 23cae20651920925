"""A job agent tunes only what it may: between generations, within bounds, on all ranks alike."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from executors.elastic.settings import ElasticSettings
from solvers.elastic.batch_tuning import NoiseScale
from tests.support.elastic_nodes import Fleet, workload
from tests.support.rank_threads import RankThreads

BOUNDS = {"least_global_batch_size": 4, "most_global_batch_size": 16, "most_learning_rate": 1.2e-3}
STEPS = 8

Start = Callable[..., RankThreads]


@pytest.fixture
def start(elastic_settings: ElasticSettings, tmp_path: Path) -> Start:
    def ranks(world: int, **fields: object) -> RankThreads:
        work = workload(10**6, hyperparameters={"micro_batch_size": 3}, **fields)
        return RankThreads(elastic_settings.model_root.parent, tmp_path, work, world)

    return ranks


@pytest.mark.parametrize("world", [1, 2])
def test_first_generation_is_bit_identical_to_untuned(start: Start, world: int) -> None:
    plain, tuned = start(world), start(world, tuning=BOUNDS)
    for ranks in (plain, tuned):
        for training in ranks.trainings:
            training.shares.note_speed(10**6)
        ranks.begin()
        counts = ranks.trainings[0].shares.counts
        assert sum(counts) == 8
        ranks.run(1)
    for name, tensor in plain.parameters().items():
        assert torch.equal(tensor, tuned.parameters()[name])


@pytest.mark.parametrize("world", [1, 2, 3])
def test_next_generation_is_tuned_within_bounds(start: Start, world: int) -> None:
    ranks = start(world, tuning=BOUNDS)
    ranks.begin()
    ranks.run(STEPS)
    before = ranks.trainings[0].position.samples_done
    assert before == STEPS * 8
    ranks.begin()
    batch, rate, scale = _agreed(ranks)
    assert batch in (4, 8, 16)
    assert 0 < rate <= 1.2e-3
    assert scale.steps == STEPS
    ranks.run(2)
    assert ranks.trainings[-1].position.samples_done == before + 2 * batch
    assert len({training.step_terms() for training in ranks.trainings}) == 1
    assert ranks.trainings[0].details() == {"global_batch": batch}


def test_noise_is_kept_in_a_checkpoint(start: Start) -> None:
    ranks, later = start(2, tuning=BOUNDS), start(2, tuning=BOUNDS)
    ranks.begin()
    ranks.run(STEPS)
    later.trainings[0].recall(ranks.trainings[0].notes())
    for each in (ranks, later):
        each.begin()
    assert _agreed(later) == _agreed(ranks)


def test_new_leader_takes_noise_of_older_rank(start: Start) -> None:
    ranks, later = start(2, tuning=BOUNDS), start(2, tuning=BOUNDS)
    ranks.begin()
    ranks.run(STEPS)
    later.trainings[1].recall(ranks.trainings[1].notes())
    later.begin()
    assert _agreed(later)[2] == _agreed(ranks)[2]


def _agreed(ranks: RankThreads) -> tuple[int, float, NoiseScale]:
    (same,) = {(t.agent.batch, t.agent.learning_rate, t.agent.scale) for t in ranks.trainings if t.agent}
    return same


@pytest.mark.long
def test_tuned_processes_reach_a_loss_earlier(fleet: Fleet) -> None:
    # Sequences take far longer than the sum of the gradients, so a step of few sequences is worth most.
    fleet.nodes.clear()
    for name in ("n1", "n2"):
        fleet.add(name, least_sequence_s=0.01)
    untuned = _losses(fleet, "untuned")
    tuned = _losses(fleet, "tuned", tuning=BOUNDS)
    reached = untuned[max(untuned)]
    assert min(samples for samples, loss in tuned.items() if loss < reached) < 0.75 * max(untuned)
    steps = sorted(tuned)
    widths = [later - earlier for earlier, later in pairwise(steps)]
    assert (widths[0], widths[-1]) == (16, 4)
    assert widths == sorted(widths, reverse=True)


def _losses(fleet: Fleet, job: str, **fields: object) -> dict[int, float]:
    """Train a job whose workers change once, and return its losses by samples."""
    work = workload(640, keeps=False, hyperparameters={"global_batch_size": 16}, **fields)
    fleet.assign(job, 1, [("n1", 1), ("n2", 1)], work)
    fleet.until(lambda: fleet.progress(job) >= 96)
    with fleet.slowed("n1"):
        fleet.assign(job, 2, [("n1", 2), ("n2", 1)], work)
        fleet.until(fleet.has_started(job, 2, "n1", "n2"))
    fleet.until(fleet.is_over(job, "n1", "n2"))
    return fleet.losses(job)


@pytest.mark.long
def test_resumed_processes_are_tuned_at_once(fleet: Fleet) -> None:
    fleet.nodes.clear()
    for name in ("n1", "n2"):
        fleet.add(name, least_sequence_s=0.01, checkpoint_s=0.0)
    work = workload(160, hyperparameters={"global_batch_size": 16}, tuning=BOUNDS)
    members = [("n1", 1), ("n2", 1)]
    fleet.assign("j", 1, members, work)
    fleet.until(lambda: fleet.progress("j") >= 64)
    fleet.release("j", 1, ["n1", "n2"], "preempted")
    fleet.until(fleet.is_over("j", "n1", "n2"))
    done = fleet.progress("j")
    fleet.assign("j", 2, members, work, resumes=True, resume_samples=done)
    fleet.until(fleet.is_over("j", "n1", "n2", generation=2))
    assert done % 16 == 0
    assert min(samples for samples in fleet.losses("j") if samples > done) == done + 4


@pytest.mark.parametrize(
    ("bounds", "fault"),
    [
        ({"least_global_batch_size": 9}, "without the job's own global_batch_size 8"),
        ({"most_global_batch_size": 7}, "without the job's own global_batch_size 8"),
        ({"least_global_batch_size": 3}, "has no sample for each of 4 workers"),
        ({"most_learning_rate": 1e-4}, "most_learning_rate 0.0001 is below the job's own"),
        ({"least_learning_rate": 1.1e-3}, "least_learning_rate 0.0011 is above the job's own"),
    ],
)
def test_bounds_without_own_values_are_refused(bounds: dict[str, float], fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        workload(tuning=BOUNDS | bounds)
