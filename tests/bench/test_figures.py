"""Goals are data, figures are held against them, and nothing is invented."""

import json

import pytest

from bench.artefacts import write_artefacts
from bench.figures import Measurement, Table
from bench.goals import Goal, goals, missed
from bench.report import report


@pytest.mark.parametrize(
    ("goal", "value", "met"),
    [
        (Goal("ms", at_most=2), 2.0, True),
        (Goal("ms", at_most=2), 2.1, False),
        (Goal("1/s", at_least=500), 499.0, False),
        (Goal("1/s", at_least=500), 500.0, True),
        (Goal("%", above=0), 0.0, False),
        (Goal("%", above=0), 0.1, True),
    ],
)
def test_a_figure_meets_its_goal(goal, value, met):
    assert goal.met(value) is met


def test_the_gate_forgives_the_margin_and_no_more():
    limit = goals("spine")["decide_median_ms"]
    inside = limit.at_most * (1 + limit.margin)
    assert missed("spine", [Measurement("decide_median_ms", inside, "", 3_000)], quick=False) == []
    (line,) = missed("spine", [Measurement("decide_median_ms", inside * 1.01, "")], quick=True)
    assert line.startswith("decide_median_ms is")
    assert (
        report("spine", [Measurement("decide_median_ms", inside, "")], True, 0)["figures"][0]["met"] is False
    )


def measured(value: float, runs: int = 5) -> Measurement:
    return Measurement("gain", value, "", runs)


@pytest.mark.parametrize(
    ("quick", "value", "runs", "words"),
    [
        (False, 2.0, 5, []),
        (False, 0.5, 5, ["gain is 0.5 %, wanted >= 1"]),
        (False, 11.0, 5, ["gain is 11 %, expected from 0 to 10: look why"]),
        (False, 2.0, 4, ["gain rests on 4 sample runs, wanted 5"]),
        (True, 0.5, 1, []),
    ],
    ids=["passes", "goal missed", "too good to be true", "too few runs", "not held to in the quick form"],
)
def test_a_gate_names_what_is_wrong_with_a_figure(quick, value, runs, words):
    goal = Goal("%", at_least=1, expected=(0, 10), runs=5, quick=False)
    assert goal.faults(measured(value, runs), quick) == words


@pytest.mark.parametrize("bench", ["spine", "auction"])
def test_every_goal_lies_where_its_figure_is_expected_to_be(bench):
    for name, goal in goals(bench).items():
        assert goal.expected is not None, name
        low, high = goal.expected
        aims = [aim for aim in (goal.at_most, goal.at_least, goal.above) if aim is not None]
        assert all(low <= aim <= high for aim in aims), name


def test_a_figure_without_a_goal_for_its_form_is_neither_met_nor_missed():
    figures = [
        Measurement("welfare_over_titan_pct", 1.0, ""),
        Measurement("welfare_over_fixed_price_pct", 1.0, ""),
    ]
    document = report("auction", figures, quick=True, seed=0)
    assert [figure["met"] for figure in document["figures"]] == [None, None]
    assert all(figure["note"].startswith("quick form") for figure in document["figures"])


def test_a_report_holds_what_was_measured_and_nothing_else(tmp_path):
    document = report("spine", [Measurement("fused_speedup", 1.5, "seen")], quick=True, seed=7)
    assert [figure["name"] for figure in document["figures"]] == ["fused_speedup"]
    table = Table("times", ("nodes", "decision_ms"), [(1, 2.5), (1, 3.5)])
    write_artefacts(tmp_path, document, [table])
    assert json.loads((tmp_path / "spine.json").read_text()) == document
    assert (tmp_path / "times.csv").read_text().splitlines() == ["nodes,decision_ms", "1,2.5", "1,3.5"]
    assert (tmp_path / "times.png").read_bytes().startswith(b"\x89PNG")
