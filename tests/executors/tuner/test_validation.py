"""A node accepts valid commands and refuses others."""

import pytest

from executors.node.runner import Objection
from executors.tuner.runner import TunerRunner
from schemas.merging.workload import TuningWorkload
from tests.support.tuner_nodes import Fleet, assigned, order, profile_of, released, workload

_PRIVATE = workload(sharing=False)


@pytest.fixture
def runner(fleet: Fleet) -> TunerRunner:
    return fleet.nodes["n1"].runner


@pytest.mark.parametrize(
    ("members", "detail"),
    [
        ([("n2", 1)], "n1 is not among the members n2"),
        ([("n1", 1), ("n1", 1)], "a node is among the members twice"),
        ([("n1", 3)], "ranks here need 3 GPUs, the node has 2"),
    ],
)
def test_what_no_cell_sends_is_impossible(
    runner: TunerRunner, members: list[tuple[str, int]], detail: str
) -> None:
    assert runner.validate(assigned("n1", order("a"), members=members)) == Objection("impossible", detail)


@pytest.mark.parametrize(("first", "second"), [(_PRIVATE, workload()), (workload(), _PRIVATE)])
@pytest.mark.parametrize("mode", ["temporal", "spatial"])
def test_unshared_job_is_never_merged(
    runner: TunerRunner, first: TuningWorkload, second: TuningWorkload, mode: str
) -> None:
    objection = runner.validate(assigned("n1", order("a", first), order("b", second), mode=mode))
    assert objection is not None
    assert objection.kind == "impossible"
    assert "does not share" in objection.detail
    assert runner.validate(assigned("n1", order("a", _PRIVATE))) is None


def test_generations_only_grow(fleet: Fleet, runner: TunerRunner) -> None:
    fleet.send(assigned("n1", order("a", workload(10**6), 3), generation=3))
    for generation, expected in ((2, "out_of_date"), (3, "out_of_date"), (4, None)):
        # Of whatever task: it is the job that counts.
        command = assigned(
            "n1",
            order("a", None, generation),
            order("b", None, generation),
            mode="spatial",
            generation=generation,
        )
        objection = runner.validate(command)
        assert (None if objection is None else objection.kind) == expected
    assert runner.validate(released("n1", "a", generation=2)).kind == "out_of_date"
    assert runner.validate(released("n1", "a", generation=3)) is None
    assert runner.validate(released("n1", "b", generation=3)).kind == "unknown_run"


def test_a_release_that_comes_twice_is_one(fleet: Fleet) -> None:
    fleet.send(assigned("n1", order("a", workload(10**6))))
    command = released("n1", "a")
    fleet.send(command)
    fleet.send(command)
    fleet.until_over("a/1")
    fleet.send(command)
    fleet.turn()
    assert len(list(fleet.ends("a/1"))) == 1


def test_a_profile_run_needs_one_gpu(runner: TunerRunner) -> None:
    assert runner.validate(profile_of("n1", order("a"), gpus=2)).kind == "impossible"


@pytest.mark.parametrize("gpus", [1, 2, 6])
def test_a_pipeline_has_a_multiple_of_four_gpus(runner: TunerRunner, gpus: int) -> None:
    job = order("a", workload(pipeline=True))
    objections = [
        runner.validate(assigned("n1", job, members=[("n1", gpus)])),
        runner.validate(profile_of("n1", job, gpus=gpus)),
    ]
    for what, objection in zip(("task", "profile run"), objections, strict=True):
        detail = f"a is pipeline-parallel: a {what} of it has a multiple of 4 GPUs, not {gpus}"
        assert objection == Objection("impossible", detail)


def test_a_pipeline_is_not_merged(runner: TunerRunner) -> None:
    orders = order("a", workload(pipeline=True)), order("b")
    objection = runner.validate(assigned("n1", *orders, mode="temporal", members=[("n1", 2), ("n2", 2)]))
    assert objection == Objection("impossible", "a is pipeline-parallel, and is merged")


def test_tasks_wait_until_workers_are_free(fleet: Fleet) -> None:
    fleet.assign(order("a", workload(10**6)), members=(("n1", 2),))
    fleet.until(lambda: fleet.short_reports("a"))
    fleet.assign(order("b", workload(2)))
    for _ in range(20):
        fleet.turn()
    assert not fleet.short_reports("b")
    fleet.send(released("n1", "b"))
    fleet.turn()
    assert fleet.short_reports("b") == ["n1 b/1 run.progressed 0 complete"]


def test_a_released_profile_run_ends(fleet: Fleet) -> None:
    fleet.send(profile_of("n1", order("a"), iterations=1_024, limit_s=600.0))
    fleet.until(lambda: fleet.short_reports("a"))
    fleet.send(released("n1", "a", reason="withdrawn"))
    fleet.until_over("a/1")
    assert fleet.short_reports("a")[-1] == "n1 a/1 run.progressed 0 complete"
