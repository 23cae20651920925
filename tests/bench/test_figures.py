"""Goals are data, figures are held against them, and nothing is invented."""

import json
import math

import pytest
from rich.console import Console

from bench.figures import Conditions, Measurement, Table
from bench.goals import Goal, Plausibility, goals, missed
from bench.output import dumps, report, write_artefacts
from bench.suite import SUITES


def goal(**fields) -> Goal:
    return Goal("%", "gains", **fields)


@pytest.mark.parametrize(
    ("aim", "value", "met"),
    [
        (goal(at_most=2), 2.0, True),
        (goal(at_most=2), 2.1, False),
        (goal(at_least=500), 499.0, False),
        (goal(at_least=500), 500.0, True),
        (goal(above=0), 0.0, False),
        (goal(above=0), 0.1, True),
        (goal(at_most=2), math.nan, False),
        (goal(at_least=2), math.inf, False),
    ],
)
def test_a_figure_meets_its_goal(aim, value, met):
    assert aim.met(value) is met


def test_the_gate_allows_the_margin_alone():
    name = "decide_median_units"
    limit = goals("spine")[name]
    inside = limit.at_most * (1 + limit.margin)
    assert missed("spine", [], [Measurement(name, inside, "", 3_000)], quick=False) == []
    (line,) = missed("spine", [], [Measurement(name, inside * 1.01, "")], quick=True)
    assert line.startswith(f"{name} is")
    assert report("spine", [Measurement(name, inside, "")], True, 0)["figures"][0]["met"] is False


def test_margin_of_a_negative_goal_allows_more() -> None:
    assert goal(at_least=-10).met(-10.5, margin=0.1)
    assert goal(at_most=-10).met(-9.5, margin=0.1)
    assert goal(above=-10).met(-10.5, margin=0.1)
    assert not goal(at_least=-10).met(-11.5, margin=0.1)


def measured(value: float, runs: int = 5) -> Measurement:
    return Measurement("gain", value, "", runs)


WITH_QUICK_FORM = goal(at_least=1, full=Plausibility((0, 10), runs=5), quick=Plausibility((-5, 20), runs=2))


@pytest.mark.parametrize(
    ("quick", "value", "runs", "words"),
    [
        (False, 2.0, 5, []),
        (False, 0.5, 5, ["gain is 0.5 %, goal >= 1"]),
        (False, 11.0, 5, ["gain is 11 %: implausible, expected 0 to 10"]),
        (False, 2.0, 4, ["gain rests on 4 sample runs, needs 5"]),
        (False, math.nan, 5, ["gain is nan, not a finite number"]),
        (False, math.inf, 5, ["gain is inf, not a finite number"]),
        (True, 0.5, 2, []),
        (True, 21.0, 2, ["gain is 21 %: implausible, expected -5 to 20"]),
        (True, 0.5, 1, ["gain rests on 1 sample runs, needs 2"]),
        (True, math.nan, 2, ["gain is nan, not a finite number"]),
    ],
    ids=[
        "passes",
        "goal missed",
        "too good to be true",
        "too few runs",
        "not a number",
        "infinite",
        "quick form: not held to the goal",
        "quick form: too good to be true",
        "quick form: too few runs",
        "quick form: not a number",
    ],
)
def test_gate_names_fault_of_figure(quick, value, runs, words):
    assert WITH_QUICK_FORM.faults(measured(value, runs), quick) == words


def test_quick_form_without_block_uses_goal():
    aim = goal(at_least=1, full=Plausibility((0, 10), runs=5))
    assert aim.faults(measured(11.0, runs=1), quick=True) == []
    assert aim.faults(measured(0.5, runs=1), quick=True) == ["gain is 0.5 %, goal >= 1"]


@pytest.mark.parametrize("quick", [False, True])
def test_missing_figure_of_part_is_named(quick):
    faults = missed("auction", ["sensitivity", "ratio"], [Measurement("ratio_mean", 1.05, "", 30)], quick)
    assert faults == ["ratio_worst is missing from the results of ratio"]


def test_figures_of_skipped_parts_are_not_missed():
    assert missed("auction", ["misreports of another suite"], [], quick=False) == []


@pytest.mark.parametrize("bench", ["spine", "auction"])
def test_every_figure_names_a_part_that_there_is(bench, tmp_path):
    assert {aim.part for aim in goals(bench).values()} <= parts(bench, tmp_path, quick=False)


@pytest.mark.parametrize("bench", ["spine", "auction"])
def test_quick_form_keeps_all_goals(bench, tmp_path):
    left_out = parts(bench, tmp_path, quick=False) - parts(bench, tmp_path, quick=True)
    assert not [name for name, aim in goals(bench).items() if aim.part in left_out and aim.binds(quick=False)]


def parts(bench, folder, quick):
    """Titles of the parts of a benchmark."""
    asked = Conditions(quick, 0, folder, 1, Console(quiet=True))
    return {part.title for part in SUITES[bench].suite().due(asked)}


@pytest.mark.parametrize("bench", ["spine", "auction"])
def test_goals_lie_in_expected_ranges(bench):
    for name, aim in goals(bench).items():
        aims = [bound for bound in (aim.at_most, aim.at_least, aim.above) if bound is not None]
        if not aims:
            continue
        assert aim.full.expected is not None, name
        low, high = aim.full.expected
        assert all(low <= bound <= high for bound in aims), name


@pytest.mark.parametrize("unit", ["ms", "s", "1/s"])
def test_spine_gates_no_absolute_time(unit):
    for name, aim in goals("spine").items():
        if aim.unit == unit:
            assert not aim.binds(quick=False), name
            assert aim.full == Plausibility(), name


def test_kafka_rate_is_gated_by_faust_alone():
    fault = goals("spine")["kafka_over_faust_ratio"].faults
    assert fault(Measurement("kafka_over_faust_ratio", 0.5, "", 15_000), quick=False) == []
    (line,) = fault(Measurement("kafka_over_faust_ratio", 0.49, "", 15_000), quick=True)
    assert line == "kafka_over_faust_ratio is 0.49 1, goal >= 0.5"


def test_quick_auction_has_own_ranges():
    assert all(aim.quick is not None and aim.quick.expected for aim in goals("auction").values())


def test_report_omits_invalid_numbers():
    document = report("auction", [Measurement("ratio_mean", math.nan, "")], quick=False, seed=0)
    (figure,) = document["figures"]
    assert (figure["value"], figure["met"]) == (None, False)
    assert "NaN" not in dumps(document)


def test_figure_without_goal_is_not_checked():
    figures = [
        Measurement("welfare_over_titan_pct", 1.0, ""),
        Measurement("welfare_over_fixed_price_pct", 1.0, ""),
    ]
    document = report("auction", figures, quick=True, seed=0)
    assert [figure["met"] for figure in document["figures"]] == [None, None]
    assert all(figure["note"].startswith("quick form") for figure in document["figures"])


def test_report_holds_only_measurements(tmp_path):
    document = report("spine", [Measurement("fused_speedup", 1.5, "seen")], quick=True, seed=7)
    assert [figure["name"] for figure in document["figures"]] == ["fused_speedup"]
    table = Table("times", [{"nodes": 1, "decision_ms": 2.5}, {"nodes": 1, "decision_ms": 3.5}])
    write_artefacts(tmp_path, document, [table])
    assert json.loads((tmp_path / "spine.json").read_text()) == document
    assert (tmp_path / "times.csv").read_text().splitlines() == ["nodes,decision_ms", "1,2.5", "1,3.5"]


def test_figure_without_gate_is_fault():
    (fault,) = missed("merging", [], [Measurement("speed", 1.0, "")], quick=False)
    assert fault == "speed is not in the gate file"
