"""The lookup table S(a, cfgs): what was measured, what lies between, and what follows from reports."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.merging.reports import MeasuredStep
from solvers.merging.lookup_table import WINDOW, AccumulatedStep, Configuration, LookupTable
from tests.support.examples import examples

PLAIN = Configuration()
PASS_S, PER_SAMPLE_S = 0.02, 0.01
"""A made-up backbone whose passes are a straight line, like real ones."""


def exchange_s(gpus: int, nodes: int) -> float:
    if gpus == 1:
        return 0.0
    return 0.01 + 0.002 * gpus if nodes > 1 else 0.001 + 0.0005 * gpus


def measured(gpus: int, nodes: int, micro: int, accumulation: int = 1, factor: float = 1.0) -> MeasuredStep:
    exchange = factor * exchange_s(gpus, nodes)
    return MeasuredStep(
        gpus=gpus,
        nodes=nodes,
        micro_batch_size=micro,
        accumulation_steps=accumulation,
        step_s=accumulation * factor * (PASS_S + PER_SAMPLE_S * micro) + exchange,
        exchange_s=exchange,
    )


def table(*rows: MeasuredStep, configuration: Configuration = PLAIN) -> LookupTable:
    found = LookupTable()
    for row in rows:
        found.observe(configuration, row)
    return found


SPARSE = [measured(a, n, m) for a, n in [(1, 1), (2, 1), (4, 1), (4, 2), (16, 4)] for m in (2, 8, 32)]


def brute_force(gpus: int, nodes: int, batch: int, most: int) -> float:
    steps_s = []
    for micro in range(1, most + 1):
        steps = -(-batch // (gpus * micro))
        one = PASS_S + PER_SAMPLE_S * micro + exchange_s(gpus, nodes)
        steps_s.append((steps - 1) * (one - exchange_s(gpus, nodes)) + one)
    return min(steps_s)


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(1, 32), st.integers(1, 8), st.integers(1, 600), st.integers(1, 64))
def test_fastest_fitting_micro_batch_is_found(gpus, nodes, batch, most):
    nodes = min(nodes, gpus)
    step = table(*SPARSE).step(PLAIN, gpus, nodes, batch, most)
    assert step.step_s == pytest.approx(brute_force(gpus, nodes, batch, most))
    assert step.micro_batch_size <= most
    assert step.micro_batch_size * step.accumulation_steps * gpus >= batch


def test_a_measured_row_comes_before_what_others_suggest():
    fast = MeasuredStep(
        gpus=2, nodes=1, micro_batch_size=8, accumulation_steps=1, step_s=0.05, exchange_s=0.001
    )
    found = table(*(row for row in SPARSE if row.gpus != 2), fast)
    assert found.step(PLAIN, 2, 1, 16, 8) == AccumulatedStep(0.05, 8, 1)


def test_accumulated_steps_match_single_ones():
    single, accumulated = table(measured(2, 1, 8)), table(measured(2, 1, 8, accumulation=4))
    for batch in (16, 64, 100):
        one, other = (found.step(PLAIN, 2, 1, batch, 8) for found in (single, accumulated))
        assert one.step_s == pytest.approx(other.step_s)


def test_rows_are_running_means_that_follow_the_latest():
    found = table(measured(1, 1, 8), measured(1, 1, 8, factor=2))
    assert found.step(PLAIN, 1, 1, 8, 8).step_s == pytest.approx(1.5 * 0.1)
    for _ in range(10 * WINDOW):
        found.observe(PLAIN, measured(1, 1, 8, factor=3))
    assert found.step(PLAIN, 1, 1, 8, 8).step_s == pytest.approx(0.3, rel=1e-3)


def test_own_rows_shape_what_the_reference_has_not():
    found, frozen = table(*SPARSE), Configuration(frozen_layers=6)
    plain = found.step(PLAIN, 4, 1, 64, 16)
    assert found.step(frozen, 4, 1, 64, 16) == plain, "nothing else is known"
    half = measured(1, 1, 8, factor=0.5)
    found.observe(frozen, half)
    assert found.step(frozen, 1, 1, 8, 8).step_s == pytest.approx(half.step_s)
    passes = plain.step_s - exchange_s(4, 1)
    assert found.step(frozen, 4, 1, 64, 16).step_s == pytest.approx(0.5 * passes + exchange_s(4, 1))
    assert found.step(PLAIN, 4, 1, 64, 16) == plain


def test_long_sequences_leave_short_ones_unchanged():
    short, long = Configuration(sequence_class=6), Configuration(sequence_class=12)
    slow = MeasuredStep(
        gpus=1, nodes=1, micro_batch_size=8, accumulation_steps=1, step_s=12.0, exchange_s=0.0
    )
    fast = slow.model_copy(update={"step_s": 0.1})
    found = table(slow, configuration=long)
    found.observe(short, fast)
    assert found.step(short, 1, 1, 8, 8).step_s == pytest.approx(0.1)
    assert found.step(long, 1, 1, 8, 8).step_s == pytest.approx(12.0)


def test_unlike_data_of_one_shape_differ_by_scale():
    slow = MeasuredStep(
        gpus=1, nodes=1, micro_batch_size=8, accumulation_steps=1, step_s=12.0, exchange_s=0.0
    )
    fast = slow.model_copy(update={"step_s": 0.1})
    found = table(slow)
    scale = found.scale_of(PLAIN, [fast])
    found.observe(PLAIN, fast, scale)
    assert found.step(PLAIN, 1, 1, 8, 8, scale).step_s == pytest.approx(0.1)
    assert found.step(PLAIN, 1, 1, 8, 8).step_s == pytest.approx(12.0)
    other_size = fast.model_copy(update={"micro_batch_size": 4})
    assert found.scale_of(PLAIN, [other_size]) == 1.0, "a curve is no level"


def test_pipelines_count_by_fours_and_apart():
    pipeline = Configuration(pipeline=True)
    step = MeasuredStep(gpus=4, nodes=1, micro_batch_size=2, accumulation_steps=4, step_s=1.0, exchange_s=0.4)
    found = table(step, configuration=pipeline)
    assert not found.has(PLAIN), "a pipeline shows nothing of other steps"
    assert found.step(pipeline, 4, 1, 8, 2).step_s == pytest.approx(1.0)
    assert found.step(pipeline, 8, 2, 8, 2).step_s == pytest.approx(0.5)
    found.observe(PLAIN, measured(1, 1, 8))
    assert found.step(PLAIN, 1, 1, 8, 8).step_s == pytest.approx(0.1)
    assert found.step(pipeline, 4, 1, 8, 2).step_s == pytest.approx(1.0)
    odd = table(step.model_copy(update={"gpus": 6}), configuration=pipeline)
    assert not odd.has(pipeline), "no whole pipelines"


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([PLAIN, Configuration(sequence_class=9), Configuration(pipeline=True)]),
            st.integers(1, 16),
            st.integers(1, 64),
            st.integers(1, 64),
            st.floats(1e-9, 1e6),
            st.floats(0, 1),
        ),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 64),
)
def test_any_history_gives_finite_steps(rows, batch):
    found = LookupTable()
    for configuration, gpus, micro, accumulation, step_s, part in rows:
        step = MeasuredStep(
            gpus=gpus,
            nodes=1,
            micro_batch_size=micro,
            accumulation_steps=accumulation,
            step_s=step_s,
            exchange_s=part * step_s,
        )
        found.observe(configuration, step, found.scale_of(configuration, [step]))
    for configuration in {row[0] for row in rows}:
        if found.has(configuration):
            step_s = found.step(configuration, 4, 2, batch, 8).step_s
            assert 0 < step_s < 1e24


def test_unmeasured_is_never_faster():
    # Two rows of which the larger was faster by chance.
    noisy = [measured(1, 1, 8, factor=1.2), measured(1, 1, 16, factor=0.5)]
    for batch in (1, 4, 12, 64, 4_096):
        step = table(*noisy).step(PLAIN, 1, 1, batch, 4_096)
        assert step.step_s > 0
    assert table(noisy[0]).step(PLAIN, 8, 2, 1, 1).step_s > 0, "a single row is enough to answer"


def test_one_node_and_several_predict_each_other():
    across = table(measured(4, 2, 8), measured(8, 2, 8)).step(PLAIN, 4, 1, 32, 8)
    within = table(measured(2, 1, 8), measured(4, 1, 8)).step(PLAIN, 8, 2, 64, 8)
    assert across.step_s > PASS_S + 8 * PER_SAMPLE_S
    assert within.step_s > PASS_S + 8 * PER_SAMPLE_S


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_restored_table_continues_alike(seed):
    drawn = random.Random(seed)
    configurations = [PLAIN, Configuration(2, True, False), Configuration(pipeline=True)]

    def draw() -> tuple[Configuration, MeasuredStep]:
        nodes = drawn.randint(1, 3)
        row = measured(nodes * drawn.randint(1, 4), nodes, drawn.randint(1, 32), factor=drawn.uniform(0.5, 2))
        return drawn.choice(configurations), row

    one, other = LookupTable(), LookupTable()
    for _ in range(30):
        one.observe(*draw())
    other.restore(json.loads(json.dumps(one.state())))
    for _ in range(20):
        configuration, row = draw()
        asked = (configuration, row.gpus, row.nodes, drawn.randint(1, 500), drawn.randint(1, 64))
        assert one.has(configuration) == other.has(configuration)
        if one.has(configuration):
            assert one.step(*asked) == other.step(*asked)
        one.observe(configuration, row)
        other.observe(configuration, row)
    assert one.state() == other.state()


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr("solvers.merging.lookup_table.MOST_ROWS", 50)
    monkeypatch.setattr("solvers.merging.lookup_table.MOST_CONFIGURATIONS", 3)
    found = table(*(measured(a, 1, m) for a in range(1, 11) for m in range(1, 21)))
    for layers in range(1, 20):
        found.observe(Configuration(frozen_layers=layers), measured(1, 1, 8))
    state = found.state()
    assert [fields[0] for fields in state] == [0, 18, 19], "the first, and the latest"
    assert len(state[0][-1]["passes"]) == 50
    assert found.step(PLAIN, 4, 1, 64, 16).step_s == pytest.approx(brute_force(4, 1, 64, 16))


@pytest.mark.parametrize("bad", [(0, 1, 8, 8), (1, 0, 8, 8), (1, 2, 8, 8), (1, 1, 0, 8), (1, 1, 8, 0)])
def test_impossible_allocations_are_refused(bad):
    with pytest.raises(ValueError, match="at least 1"):
        table(*SPARSE).step(PLAIN, *bad)


def test_empty_table_names_remedy():
    with pytest.raises(LookupError, match="offline profiles"):
        LookupTable().step(PLAIN, 1, 1, 8, 8)
    assert LookupTable().scale_of(PLAIN, [measured(1, 1, 8)]) == 1.0
