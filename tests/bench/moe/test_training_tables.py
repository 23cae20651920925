"""The tables of the part `training`, from steps of the model in place of measured ones."""

from dataclasses import replace
from itertools import pairwise

import pytest

from bench.charts import columns_of
from bench.figures import Table
from bench.moe.model_of_training import Costs, costs_of, modelled_step
from bench.moe.training import designs
from bench.moe.training_shape import Shape
from bench.moe.training_tables import Measured, all_tables

SHAPE = Shape(experts=4, layers=2, hidden=64, dense=64, inner=64, tokens=64, bucket_bytes=2 * 4 * 64 * 64)
BYTE_S = 1e-6
COSTS = Costs(
    dense_s=0.05,
    experts_s=0.02,
    exchanged_s=BYTE_S * SHAPE.exchanged_bytes,
    dense_gradients_s=BYTE_S * SHAPE.dense_bytes,
    expert_gradients_s=BYTE_S * SHAPE.expert_bytes,
    micro_op_s=0.001,
    slowdown=1.8,
    bucket_layers=1,
    parts=2,
)
VARIANTS = designs(SHAPE.dense_bytes // 2)


@pytest.fixture(scope="module")
def measured() -> Measured:
    return Measured(
        shape=SHAPE,
        variants=VARIANTS,
        steps={each.name: modelled_step(COSTS, 4, SHAPE.layers, each) for each in VARIANTS},
        pair={each.name: modelled_step(COSTS, 2, SHAPE.layers, each) for each in (VARIANTS[0], VARIANTS[-1])},
        by_size={"1 MiB": modelled_step(COSTS, 4, SHAPE.layers, VARIANTS[-2])},
        slowdown=COSTS.slowdown,
        micro_op_s=COSTS.micro_op_s,
        parts=COSTS.parts,
    )


@pytest.fixture(scope="module")
def tables(measured: Measured) -> dict[str, Table]:
    return {table.name: table for table in all_tables(measured)}


@pytest.mark.long
def test_costs_of_a_step_are_those_that_it_was_made_of() -> None:
    step = modelled_step(COSTS, 4, SHAPE.layers, VARIANTS[1])

    found = costs_of(SHAPE, 4, step, COSTS.slowdown, COSTS.micro_op_s, COSTS.parts)

    assert vars(found) == pytest.approx(vars(COSTS))


@pytest.mark.long
def test_every_figure_has_a_table_whose_rows_can_be_drawn(tables: dict[str, Table]) -> None:
    from matplotlib.figure import Figure

    assert set(tables) == {
        *(f"figure_4_{number}" for number in range(10, 16)),
        *("table_4_4", "training_steps", "model_check"),
    }
    for table in tables.values():
        axes = Figure().subplots()
        table.chart.draw(axes, columns_of(table.columns, table.rows))
        assert axes.patches


@pytest.mark.long
def test_measured_modelled_and_published_speedups_stand_beside_each_other(
    measured: Measured, tables: dict[str, Table]
) -> None:
    table = tables["figure_4_10"]

    sources = {source for _, source, _ in table.rows}
    assert sources == {"measured", "model", "model, replicas near", "thesis"}
    of_four = {source: factor for experts, source, factor in table.rows if experts == "4"}
    step_s = {name: times.step_s for name, times in measured.steps.items()}
    assert of_four["measured"] == step_s["baseline"] / step_s["+ packing"]
    assert of_four["thesis"] == 1.37


@pytest.mark.long
def test_where_no_all_to_all_is_left_there_is_no_speedup_of_it(tables: dict[str, Table]) -> None:
    assert not [row for row in tables["figure_4_13"].rows if row[0] == "2"]


@pytest.mark.long
def test_the_model_with_costs_of_this_machine_repeats_steps_that_it_was_made_of(
    tables: dict[str, Table],
) -> None:
    table = tables["model_check"]

    by_source = {
        source: [row[2:] for row in table.rows if row[1] == source] for source in ("measured", "model")
    }
    assert by_source["model"] == [pytest.approx(row) for row in by_source["measured"]]


@pytest.mark.long
def test_designs_add_one_choice_each() -> None:
    fields = [replace(each, name="") for each in VARIANTS]

    changed = [
        {name for name in vars(before) if getattr(before, name) != getattr(after, name)}
        for before, after in pairwise(fields)
    ]
    assert changed == [{"has_two_lanes"}, {"is_scheduled"}, {"partition_bytes"}, {"chunks"}, {"per_device"}]
