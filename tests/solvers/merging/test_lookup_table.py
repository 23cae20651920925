"""The lookup table S(a, cfgs): what was measured, what lies between, and what other tables show."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.merging.reports import MeasuredStep
from solvers.merging.lookup_table import (
    WINDOW,
    AccumulatedStep,
    PassTimes,
    StepTimeTable,
    is_possible,
    of_pipelines,
)
from tests.support.examples import examples

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


def table(*rows: MeasuredStep) -> StepTimeTable:
    return StepTimeTable(rows)


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
    step = table(*SPARSE).step(gpus, nodes, batch, most)
    assert step.step_s == pytest.approx(brute_force(gpus, nodes, batch, most))
    assert step.micro_batch_size <= most
    assert step.micro_batch_size * step.accumulation_steps * gpus >= batch


def test_a_measured_row_comes_before_what_others_suggest():
    fast = MeasuredStep(
        gpus=2, nodes=1, micro_batch_size=8, accumulation_steps=1, step_s=0.05, exchange_s=0.001
    )
    found = table(*(row for row in SPARSE if row.gpus != 2), fast)
    assert found.step(2, 1, 16, 8) == AccumulatedStep(0.05, 8, 1)


def test_accumulated_steps_match_single_ones():
    single, accumulated = table(measured(2, 1, 8)), table(measured(2, 1, 8, accumulation=4))
    for batch in (16, 64, 100):
        one, other = (found.step(2, 1, batch, 8) for found in (single, accumulated))
        assert one.step_s == pytest.approx(other.step_s)


def test_rows_are_means_by_number_of_reports():
    found = table(measured(1, 1, 8), measured(1, 1, 8, factor=2))
    assert found.step(1, 1, 8, 8).step_s == pytest.approx(1.5 * 0.1)
    found.add(PassTimes.of(measured(1, 1, 8, factor=3)), reports=4)
    assert found.step(1, 1, 8, 8).step_s == pytest.approx((1 + 2 + 4 * 3) / 6 * 0.1)


def test_reports_outweigh_any_number_of_offline_rows():
    found = table(*[measured(1, 1, 8)] * 10_000)
    found.add(PassTimes.of(measured(1, 1, 8, factor=3)), reports=WINDOW)
    assert found.step(1, 1, 8, 8).step_s == pytest.approx(2 * 0.1)


def test_own_rows_shape_what_the_reference_has_not():
    reference, half = table(*SPARSE), measured(1, 1, 8, factor=0.5)
    plain, own = reference.step(4, 1, 64, 16), table(half)
    assert own.step(1, 1, 8, 8, references=[reference]).step_s == pytest.approx(half.step_s)
    passes = plain.step_s - exchange_s(4, 1)
    found = own.step(4, 1, 64, 16, references=[reference])
    assert found.step_s == pytest.approx(0.5 * passes + exchange_s(4, 1))


def test_second_reference_shows_what_the_first_has_not():
    own, single = table(measured(1, 1, 8)), table(measured(1, 1, 4, factor=2), measured(1, 1, 8, factor=2))
    found = own.step(4, 1, 16, 4, references=[single, table(*SPARSE)])
    assert found.step_s == pytest.approx(PASS_S + 4 * PER_SAMPLE_S + exchange_s(4, 1))


def test_own_exchanges_count_where_references_have_none():
    own = table(measured(1, 1, 8), measured(2, 1, 8), measured(4, 1, 8))
    found = own.step(3, 1, 24, 8, references=[table(measured(1, 1, 8))])
    assert found.step_s == pytest.approx(PASS_S + 8 * PER_SAMPLE_S + exchange_s(3, 1))


def test_unlike_data_of_one_shape_differ_by_scale():
    slow = MeasuredStep(
        gpus=1, nodes=1, micro_batch_size=8, accumulation_steps=1, step_s=12.0, exchange_s=0.0
    )
    fast = slow.model_copy(update={"step_s": 0.1})
    found = table(slow)
    scale = found.scale_of([fast])
    found.add(PassTimes.of(fast, scale))
    assert found.step(1, 1, 8, 8, scale).step_s == pytest.approx(0.1)
    assert found.step(1, 1, 8, 8).step_s == pytest.approx(12.0)
    other_size = fast.model_copy(update={"micro_batch_size": 4})
    assert found.scale_of([other_size]) == 1.0, "a curve is no level"


def test_pipelines_count_by_fours():
    step = MeasuredStep(gpus=4, nodes=1, micro_batch_size=2, accumulation_steps=4, step_s=1.0, exchange_s=0.4)
    row = of_pipelines(step)
    assert row is not None
    found = table(row)
    assert found.step(1, 1, 8, 2).step_s == pytest.approx(1.0)
    assert found.step(2, 2, 8, 2).step_s == pytest.approx(0.5)
    assert of_pipelines(step.model_copy(update={"gpus": 6})) is None, "no whole pipelines"


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
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
    tables = [StepTimeTable() for _ in range(3)]
    for place, gpus, micro, accumulation, step_s, part in rows:
        step = MeasuredStep(
            gpus=gpus,
            nodes=1,
            micro_batch_size=micro,
            accumulation_steps=accumulation,
            step_s=step_s,
            exchange_s=part * step_s,
        )
        if is_possible(step):
            tables[place].add(PassTimes.of(step, tables[place].scale_of([step])))
    held = [each for each in tables if each]
    if held:
        step_s = held[0].step(4, 2, batch, 8, references=held[1:]).step_s
        assert 0 < step_s < 1e30


def test_unmeasured_is_never_faster():
    # Two rows of which the larger was faster by chance.
    noisy = [measured(1, 1, 8, factor=1.2), measured(1, 1, 16, factor=0.5)]
    for batch in (1, 4, 12, 64, 4_096):
        step = table(*noisy).step(1, 1, batch, 4_096)
        assert step.step_s > 0
    assert table(noisy[0]).step(8, 2, 1, 1).step_s > 0, "a single row is enough to answer"


def test_one_node_and_several_predict_each_other():
    across = table(measured(4, 2, 8), measured(8, 2, 8)).step(4, 1, 32, 8)
    within = table(measured(2, 1, 8), measured(4, 1, 8)).step(8, 2, 64, 8)
    assert across.step_s > PASS_S + 8 * PER_SAMPLE_S
    assert within.step_s > PASS_S + 8 * PER_SAMPLE_S


@pytest.mark.parametrize("bad", [(0, 1, 8, 8), (1, 0, 8, 8), (1, 2, 8, 8), (1, 1, 0, 8), (1, 1, 8, 0)])
def test_impossible_allocations_are_refused(bad):
    with pytest.raises(ValueError, match="at least 1"):
        table(*SPARSE).step(*bad)


def test_empty_table_names_remedy():
    with pytest.raises(LookupError, match="offline profiles"):
        StepTimeTable().step(1, 1, 8, 8)
    assert StepTimeTable().scale_of([measured(1, 1, 8)]) == 1.0
