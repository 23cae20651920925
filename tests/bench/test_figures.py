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
    ],
)
def test_a_figure_meets_its_goal(goal, value, met):
    assert goal.met(value) is met


def test_the_gate_forgives_the_margin_and_no_more():
    limit = goals("spine")["decide_median_ms"]
    inside = limit.at_most * (1 + limit.margin)
    assert missed("spine", [Measurement("decide_median_ms", inside, "")]) == []
    (line,) = missed("spine", [Measurement("decide_median_ms", inside * 1.01, "")])
    assert line.startswith("decide_median_ms is")
    assert (
        report("spine", [Measurement("decide_median_ms", inside, "")], True, 0)["figures"][0]["met"] is False
    )


def test_a_report_holds_what_was_measured_and_nothing_else(tmp_path):
    document = report("spine", [Measurement("fused_speedup", 1.5, "seen")], quick=True, seed=7)
    assert [figure["name"] for figure in document["figures"]] == ["fused_speedup"]
    table = Table("times", ("nodes", "decision_ms"), [(1, 2.5), (1, 3.5)])
    write_artefacts(tmp_path, document, [table])
    assert json.loads((tmp_path / "spine.json").read_text()) == document
    assert (tmp_path / "times.csv").read_text().splitlines() == ["nodes,decision_ms", "1,2.5", "1,3.5"]
    assert (tmp_path / "times.png").read_bytes().startswith(b"\x89PNG")
