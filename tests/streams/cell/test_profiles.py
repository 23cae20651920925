"""Measured speeds in the auction: which count for whose bid, and which are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.views.words import describe
from schemas.auction.settings import TitanPolicy
from schemas.cells import BaseDimensions, ThroughputRow
from schemas.decisions import EventIgnored, JobAdmitted
from schemas.fleet import RunProgressed
from schemas.lora import LoraHyperparameters
from schemas.profiles import MeasuredSteps, ProfileAccepted, ProfileKey, ProfilePoint, ProfileReported
from solvers.auction.market.demand import least_memory_gib
from streams.cell.state_machine import Cell
from streams.policies.inference.kind import InferencePolicy
from tests.support.cells import CheckedBench, ask, bid, nodes_by_slot, started, tick, zone

SHAPE = {"rank": 8, "target_modules": ("q_proj", "v_proj"), "precision": "bfloat16"}
UNDECLARED = {"speed_samples_per_s": None}


def report(step_s: float = 4.0, gpu_type: str = "fast", **changes) -> ProfileReported:
    """A published profile of the default shape: 8 samples in `step_s`."""
    point = ProfilePoint(
        gpu_type=gpu_type,
        micro_batch_size=8,
        step_s=step_s,
        memory_gib=2.0,
        tokens_per_sample=60.0,
        steps=20,
    )
    fields = {"cell": "c", "zone": "z", "profiler": "lab", "points": (point,), **changes}
    key = ProfileKey(base_model=fields.pop("base_model", "tiny"), sequence_tokens=64, **SHAPE)
    return ProfileReported(key=key, **fields)


def run(bench: CheckedBench, user: str, step_s: float, slot: int, memory_gib: float | None = None) -> int:
    """Let a job of a user begin in the next slot, and measure its steps; return the slot after it."""
    job_id = f"job-{user}-{slot}"
    outcomes = bench.send(bid(job_id, user=user, work_samples=40, speed_samples_per_s={"fast": 2.0}))
    (admitted,) = [outcome for outcome in outcomes if isinstance(outcome, JobAdmitted)]
    first, node = min(nodes_by_slot(admitted).items())
    bench.send(*(tick(each) for each in range(slot, first + 1)))
    bench.send(started(node, first, 0, job_id=job_id))
    bench.send(
        RunProgressed(
            cell="c",
            node=node,
            run_id=f"{first}/{job_id}",
            job_id=job_id,
            samples_done=8,
            node_s=step_s,
            loss=1.0,
            memory_gib=memory_gib,
            measured=MeasuredSteps(
                micro_batch_size=8, step_s=step_s, tokens_per_sample=60.0, steps=3, precision="bfloat16"
            ),
            complete=False,
        )
    )
    return first + 1


def speed(bench: CheckedBench, **changes) -> tuple[float, str, str | None] | None:
    """The speed on `fast` of a task whose user declares none, with its source; None if none is known."""
    (quoted,) = bench.send(ask(deadline_s=2e9, **{**UNDECLARED, **changes}))
    if quoted.evidence.offer is None:
        return None
    (counted,) = [each for each in quoted.evidence.offer.speeds if each.gpu_type == "fast"]
    return counted.samples_per_s, counted.source, counted.speed_from


def memory(bench: CheckedBench, **changes) -> tuple[float, str, str | None]:
    """The memory of a task at a declared speed, with its source."""
    (quoted,) = bench.send(ask(deadline_s=2e9, **changes))
    counted = quoted.evidence.offer.memory
    return counted.gib, counted.source, counted.memory_from


def test_published_profile_counts_without_claim():
    bench = CheckedBench.configured()
    assert speed(bench) is None
    (accepted,) = bench.send(report(step_s=4.0))
    assert accepted == ProfileAccepted(zone="z", profiler="lab", reason="recorded", points=1)
    assert speed(bench) == (2.0, "row", "offline")


@given(st.floats(1.0, 86_400.0), st.floats(0.1, 8.0))
def test_profile_changes_no_bid_with_claims(step_s, memory_gib):
    bench = CheckedBench.configured()
    before = bench.send(ask(deadline_s=2e9, memory_gib=2.0))
    (point,) = report(step_s=step_s).points
    bench.send(report(points=(point.model_copy(update={"memory_gib": memory_gib}),)))
    assert bench.send(ask(deadline_s=2e9, memory_gib=2.0)) == before


@given(st.floats(1.0, 86_400.0))
def test_row_counts_before_profile(step_s):
    bench = CheckedBench.configured(zones=(zone(throughput=(_row(),)),))
    bench.send(report(step_s=step_s))
    assert speed(bench) == (2.0, "row", None)
    assert memory(bench, memory_gib=None) == (2.0, "row", None)


def test_profile_that_runs_refute_does_not_count():
    bench, slot = CheckedBench.configured(), 0
    for user in ("a", "b"):
        slot = run(bench, user, 4.0, slot)
    bench.send(report(step_s=40.0))
    assert speed(bench) is None
    bench.send(report(step_s=5.0))
    assert speed(bench) == (1.6, "row", "offline")


def test_unmeasured_batch_is_interpolated():
    bench = CheckedBench.configured()
    points = tuple(
        ProfilePoint(
            gpu_type="fast",
            micro_batch_size=size,
            step_s=size / 2,
            memory_gib=1.0 + size / 10,
            tokens_per_sample=60.0,
            steps=20,
        )
        for size in (1, 2, 4, 16)
    )
    bench.send(report(points=points))
    for size in (3, 8):
        shape = {"hyperparameters": LoraHyperparameters(batch_size=size)}
        samples_per_s, source, origin = speed(bench, **shape)
        assert (samples_per_s, source, origin) == (pytest.approx(2.0), "row", "offline")
        gib, source, origin = memory(bench, memory_gib=None, **shape)
        assert (gib, source, origin) == (pytest.approx(1.0 + size / 10, abs=1 / 1024), "row", "offline")


def test_two_measured_batches_count_as_uncertain():
    bench = CheckedBench.configured()
    (point,) = report(step_s=4.0).points
    other = point.model_copy(update={"micro_batch_size": 16, "step_s": 8.0})
    bench.send(report(points=(point, other)))
    found = speed(bench, memory_gib=2.0, hyperparameters=LoraHyperparameters(batch_size=12))
    assert found == (pytest.approx(1.0), "row", "offline"), "half of the speed between them"


def test_profile_of_another_shape_does_not_count():
    bench = CheckedBench.configured()
    bench.send(report())
    assert speed(bench, hyperparameters=LoraHyperparameters(rank=4)) is None
    assert speed(bench, hyperparameters=LoraHyperparameters(batch_size=4)) is None
    assert speed(bench, hyperparameters=LoraHyperparameters(sequence_length=128)) is None


@pytest.mark.parametrize(
    ("changes", "case"),
    [
        ({"step_s": 1e-3}, "faster_than_node"),
        ({"gpu_type": "unheard"}, "unknown_gpu_type"),
        ({"base_model": "other"}, "other_base_model"),
    ],
)
def test_impossible_profile_is_ignored(changes, case):
    bench = CheckedBench.configured()
    (ignored,) = bench.send(report(**changes))
    assert isinstance(ignored, EventIgnored)
    assert (ignored.reason, ignored.facts["case"]) == ("profile_refused", case)
    assert speed(bench) is None


@pytest.mark.parametrize("policy", [TitanPolicy(kind="titan"), InferencePolicy()])
def test_zone_without_use_for_profiles_refuses_them(policy):
    (fast, _), nodes = zone().gpu_types, zone().nodes[:2]
    bench = CheckedBench.configured(zones=(zone(policy=policy, gpu_types=(fast,), nodes=nodes),))
    (ignored,) = bench.send(report())
    assert (ignored.reason, ignored.facts["case"]) == ("profile_refused", "takes_no_profiles")
    assert describe(ignored) != []


def test_three_other_users_count_before_offline():
    bench = CheckedBench.configured()
    bench.send(report(step_s=2.0))
    slot = 0
    for user, step_s in (("a", 2.4), ("b", 2.5), ("c", 2.9)):
        assert speed(bench) == (4.0, "row", "offline")
        slot = run(bench, user, step_s, slot)
    assert speed(bench) == (3.2, "row", "measured")


def test_own_runs_count_only_for_undeclared_speed():
    bench = CheckedBench.configured()
    run(bench, "u", 4.0, 0)
    assert speed(bench, memory_gib=2.0) == (pytest.approx(1.8), "row", "own_runs")
    declared = {"speed_samples_per_s": {"fast": 0.5}, "memory_gib": 2.0}
    assert speed(bench, **declared) == (0.5, "declared", None)


def test_memory_is_claimed_without_profile():
    bench = CheckedBench.configured()
    assert memory(bench, memory_gib=1.5) == (1.5, "declared", None)
    assert speed(bench, memory_gib=None) is None


def test_published_memory_counts_without_claim():
    bench = CheckedBench.configured()
    bench.send(report())
    assert memory(bench, memory_gib=None) == (2.0, "row", "offline")
    assert memory(bench, memory_gib=1.0) == (1.0, "declared", None)


def test_memory_of_three_users_counts_before_offline():
    bench, slot = CheckedBench.configured(), 0
    bench.send(report())
    for user, gib in (("a", 1.5), ("b", 1.625), ("c", 1.75), ("d", None)):
        assert memory(bench, memory_gib=None)[2] == ("measured" if user == "d" else "offline")
        slot = run(bench, user, 4.0, slot, gib)
    # A run without measured memory takes no part in the median.
    assert memory(bench, memory_gib=None) == (1.625, "row", "measured")


def test_memory_of_short_records_counts_as_full():
    dimensions = BaseDimensions(
        hidden_features=4_096,
        intermediate_features=8_192,
        key_value_features=4_096,
        layers=48,
        vocabulary_size=100_000,
    )
    bench = CheckedBench.configured(zones=(zone(base_dimensions=dimensions),))
    bench.send(report())
    gib, source, origin = memory(bench, memory_gib=None)
    assert (source, origin) == ("row", "offline")
    least_gib = least_memory_gib(LoraHyperparameters(), dimensions)
    assert least_gib > 2.0
    assert gib == pytest.approx(least_gib, abs=1 / 1024)


def test_own_memory_counts_only_without_claim():
    bench = CheckedBench.configured()
    run(bench, "u", 4.0, 0, 1.0)
    gib, source, origin = memory(bench, memory_gib=None)
    assert (source, origin) == ("row", "own_runs")
    assert gib == pytest.approx(1.1, abs=1 / 1024)
    assert memory(bench, memory_gib=0.5) == (0.5, "declared", None)


def test_quote_names_source_of_profile():
    bench = CheckedBench.configured()
    bench.send(report())
    (quoted,) = bench.send(ask(deadline_s=2e9, **UNDECLARED, memory_gib=None))
    lines = describe(quoted)
    assert "speed: 2 samples/s on fast (by the zone's measure, by a published profile)" in lines
    assert "memory: 2 GiB (by the zone's measure, by a published profile)" in lines


@given(st.floats(2.0, 1_000.0), st.floats(0.5, 4.0))
def test_own_runs_leave_own_price(step_s, declared):
    prices = []
    for measured_s in (4.0, step_s):
        bench = CheckedBench.configured(zones=(zone(throughput=(_row(),)),))
        run(bench, "u", measured_s, 0)
        (quoted,) = bench.send(ask(deadline_s=2e9, speed_samples_per_s={"fast": declared}))
        prices.append(quoted.evidence.offer.price)
    assert prices[0] == prices[1]


@given(st.floats(2.0, 1_000.0))
def test_one_user_stays_between_others(step_s):
    bench, slot = CheckedBench.configured(), 0
    for user, each_s in (("a", 4.0), ("b", 8.0), ("forger", step_s)):
        slot = run(bench, user, each_s, slot)
    found = speed(bench)
    assert found is not None
    assert 1.0 <= found[0] <= 2.0


def test_admission_keeps_its_profiles_when_restored():
    bench = CheckedBench.configured()
    bench.send(report(step_s=4.0))
    bench.send(bid(**UNDECLARED, memory_gib=None))
    restored = Cell.unpack(bench.cell.packed())
    assert restored.packed() == bench.cell.packed()
    assert restored.describe()["profiles"] == {"measured": 0, "offline": 1}


def _row() -> ThroughputRow:
    return ThroughputRow(
        gpu_type="fast", rank=64, batch_size=8, sequence_length=512, samples_per_s=2.0, memory_gib=2.0
    )
