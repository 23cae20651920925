"""Published profiles in a merging zone: what they show of its jobs, and what they cannot change."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.decisions import EventIgnored
from schemas.merging.problems import StepTime
from schemas.merging.reports import MeasuredStep
from schemas.merging.workload import TuningHyperparameters
from schemas.profiles import ProfileAccepted, ProfilePoint, ProfileReported
from streams.policies.merging.speeds import profile_key
from tests.support.merging import CELL, submit, workload
from tests.support.merging_script import BATCH, Script
from tests.support.twins import ZONE

EXCHANGE_S = {1: 0.0, 2: 0.3, 4: 0.5}


def point(gpus: int, micro: int, pass_s: float, **changes: Any) -> ProfilePoint:
    exchange_s = EXCHANGE_S[gpus]
    fields = {
        "gpu_type": "V100",
        "gpus": gpus,
        "micro_batch_size": micro,
        "step_s": pass_s + exchange_s,
        "exchange_s": exchange_s,
        "tokens_per_sample": 20.0,
        "steps": 20,
        **changes,
    }
    return ProfilePoint(**fields)


def profile(*points: ProfilePoint, **changes: Any) -> ProfileReported:
    key = profile_key(workload(), "bfloat16")
    fields = {"cell": CELL, "zone": ZONE, "profiler": "lab", "key": key, "points": points, **changes}
    return ProfileReported(**fields)


def linear(sample_s: float = 1.0) -> tuple[ProfilePoint, ...]:
    return tuple(
        point(gpus, micro, sample_s * micro) for gpus, micro in ((1, 8), (1, 4), (2, 4), (2, 2), (4, 2))
    )


def measured(step_s: float, micro: int = BATCH, **changes: Any) -> MeasuredStep:
    return MeasuredStep(
        gpus=1,
        nodes=1,
        micro_batch_size=micro,
        accumulation_steps=1,
        step_s=step_s,
        exchange_s=0.0,
        **changes,
    )


def table(script: Script, job_id: str = "a", step_s: float = 8.0, **fields: Any) -> dict[int, float]:
    """The step times that a solver gets for a new job whose profile run measured a step on one GPU."""
    script.send(new_job(job_id, **fields))
    script.send(script.profile(job_id, steps=(measured(step_s),)))
    problem = script.ask().problem
    (unit,) = (unit for unit in problem.units if unit.job_ids == (job_id,))
    steps: tuple[StepTime, ...] = problem.step_tables[problem.kinds[unit.kind].step_table]
    return {step.gpus: step.step_s for step in steps}


def new_job(job_id: str, **fields: Any) -> Any:
    return submit(job_id, **{"data": job_id, "accuracy": None, **fields})


def test_profile_shows_steps_on_more_gpus():
    script = Script()
    unknown = table(script)
    assert unknown == pytest.approx({1: 8.0}), "one measurement shows no gain of further GPUs"
    script = Script()
    (accepted,) = script.send(profile(*linear()))
    assert accepted == ProfileAccepted(zone=ZONE, profiler="lab", reason="recorded", points=5)
    assert table(script) == pytest.approx({1: 8.0, 2: 4.3, 3: 3.4, 4: 2.5})


def test_own_measurements_set_the_level():
    script = Script()
    script.send(profile(*linear()))
    assert table(script, step_s=11.2) == pytest.approx({1: 11.2, 2: 5.6 + 0.3, 3: 4.2 + 0.4, 4: 2.8 + 0.5})


@given(st.floats(0.05, 1_000.0).filter(lambda factor: not 0.6 < factor < 1.6))
def test_profile_that_runs_refute_changes_nothing(factor):
    script = Script()
    script.send(profile(*linear(factor)))
    assert table(script) == table(Script())


@given(st.floats(0.05, 1_000.0), st.floats(0.0, 1_000.0))
def test_forged_exchange_changes_no_step_on_measured_gpus(pass_s, exchange_s):
    script = Script()
    forged = point(4, 2, pass_s, step_s=pass_s + exchange_s, exchange_s=exchange_s)
    script.send(profile(forged, profiler="forger"))
    assert table(script)[1] == pytest.approx(8.0)


def test_settings_count_before_profiles():
    rows = (measured(9.0), measured(5.0, micro=4))
    script = Script(speeds=rows)
    script.send(profile(*linear()))
    assert table(script) == table(Script(speeds=rows))


@pytest.mark.parametrize(
    ("changes", "case"),
    [
        ({"points": (point(1, 8, 1e-3),)}, "faster_than_node"),
        ({"points": (point(1, 8, 8.0, gpu_type="unheard"),)}, "unknown_gpu_type"),
        ({"points": (point(1, 8, 8.0, memory_gib=1e5),)}, "more_than_node"),
        ({"key": profile_key(workload(model="other"), "bfloat16")}, "other_base_model"),
    ],
)
def test_impossible_profile_is_refused(changes, case):
    script = Script()
    (ignored,) = script.send(profile(**{"points": linear(), **changes}))
    assert isinstance(ignored, EventIgnored)
    assert (ignored.reason, ignored.facts["case"]) == ("profile_refused", case)
    assert table(script) == table(Script())


@pytest.mark.parametrize(
    "changes",
    [{"rank": 4}, {"target_modules": ("k_proj",)}, {"frozen_layers": 2}, {"gradient_checkpointing": True}],
)
def test_profile_of_another_shape_does_not_count(changes):
    script, other = Script(), TuningHyperparameters(batch_size=BATCH, **changes)
    script.send(profile(*linear()))
    assert table(script, hyperparameters=other) == pytest.approx({1: 8.0})


def test_profile_counts_in_the_precision_of_the_nodes():
    script = Script()
    script.send(profile(*linear(), key=profile_key(workload(), "float32")))
    script.send(new_job("first"))
    script.send(script.profile("first", steps=(measured(8.0, precision="float32"),)))
    assert table(script) == pytest.approx({1: 8.0, 2: 4.3, 3: 3.4, 4: 2.5})


def test_measured_steps_serve_other_zones_policies_alike():
    """The store has the readings of a merging zone by user, like those of every other."""
    script = Script()
    table(script)
    assert script.bench.cell.describe()["profiles"] == {"measured": 1, "offline": 0}


@given(st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 8), st.floats(3.0, 50.0)), max_size=6))
def test_any_profile_leaves_finite_ascending_tables(points):
    script = Script()
    unique = {(gpus, micro): point(gpus, micro, pass_s) for gpus, micro, pass_s in points}
    if unique:
        script.send(profile(*unique.values()))
    found = table(script)
    assert all(0 < step_s < 1e6 for step_s in found.values())
    assert list(found) == sorted(found)
