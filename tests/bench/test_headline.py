"""Published figures: kept with what they were measured on, and called stale once that has changed."""

import json

import pytest

from bench import headline
from bench.figures import Measurement
from bench.goals import goals
from bench.headline import (
    DOCUMENTS,
    PUBLISHED,
    ROOT,
    Headline,
    headlines,
    publish,
    run_short,
    table,
    table_rows,
    write_into_documents,
)
from bench.kept import KeptFigure, KeptFigures, sources_of
from bench.output import kept_figures, report
from infra.errors import CommandError

RATIO = Headline("spine", "kafka_over_faust_ratio", "rate over Faust's", short=True)


def figure(value: float, quick: bool = False, sources: str | None = None) -> KeptFigure:
    return KeptFigure(
        name=RATIO.name,
        value=value,
        unit="1",
        note="",
        quick=quick,
        seed=0,
        commit="0123456789abcdef+changes",
        machine="Linux x86_64, 2 cores",
        sources=sources or sources_of("spine"),
    )


@pytest.fixture
def folders(tmp_path):
    def make(full: KeptFigure | None, quick: KeptFigure | None):
        made = []
        for name, kept in (("spine", full), ("spine-quick", quick)):
            (tmp_path / name).mkdir()
            if kept is not None:
                KeptFigures(tmp_path / name).keep([kept])
            made.append(tmp_path / name)
        return {"spine": made}

    return make


@pytest.mark.parametrize(
    ("full", "quick", "state", "value"),
    [
        (None, None, "missing", None),
        (figure(0.5), figure(0.6, quick=True), "current", 0.5),
        (figure(0.5, sources="old"), figure(0.6, quick=True), "current", 0.6),
        (figure(0.5, sources="old"), None, "stale", 0.5),
        (figure(0.5, sources="old"), figure(0.6, quick=True, sources="old"), "stale", 0.5),
    ],
    ids=["missing", "full before quick", "current before stale", "stale", "stale: full before quick"],
)
def test_figure_is_current_with_its_sources(folders, full, quick, state, value):
    (row,) = table_rows([RATIO], folders(full, quick))
    assert row.state == state
    assert (row.figure and row.figure.value) == value


@pytest.mark.parametrize(
    ("kept", "measured"),
    [(None, [("spine", "Kafka")]), (figure(0.5, sources="old"), [("spine", "Kafka")]), (figure(0.5), [])],
    ids=["missing", "stale", "current"],
)
def test_stale_short_parts_are_measured_again(folders, kept, measured):
    seen = []
    rows = table_rows([RATIO], folders(kept, None))
    run_short(rows, lambda bench, part: seen.append((bench, part)))
    assert seen == measured


def test_table_names_commit_machine_and_stale_figures(folders):
    text = table(table_rows([RATIO], folders(figure(0.5, sources="old"), None)))
    assert text.splitlines()[-1] == (
        "| `kafka_over_faust_ratio`: rate over Faust's | 0.5 | full | `012345678` + changes "
        "| Linux x86_64, 2 cores | **stale** |"
    )


def test_the_table_names_what_is_missing_below_it(folders):
    assert table(table_rows([RATIO], folders(None, None))).splitlines()[2:] == [
        "",
        "Missing: `kafka_over_faust_ratio` (spine).",
    ]


def test_report_becomes_figures_with_origin(tmp_path):
    document = report("spine", [Measurement("fused_speedup", 1.5, "seen")], quick=True, seed=7)
    KeptFigures(tmp_path).keep(kept_figures(document))
    kept = KeptFigures(tmp_path).find("fused_speedup")
    assert (kept.value, kept.commit, kept.quick, kept.seed) == (1.5, document["commit"], True, 7)
    assert "cores" in kept.machine
    assert kept.is_current("spine")


def test_part_replaces_only_its_figures(tmp_path):
    for name, value in (("fused_speedup", 1.5), ("recovery_s", 8.0), ("fused_speedup", 1.6)):
        document = report("spine", [Measurement(name, value, "")], quick=False, seed=0)
        KeptFigures(tmp_path).keep(kept_figures(document))
    kept = KeptFigures(tmp_path)
    assert (kept.find("fused_speedup").value, kept.find("recovery_s").value) == (1.6, 8.0)


def test_damaged_figures_are_one_line(tmp_path):
    (tmp_path / "figures.json").write_text(json.dumps([{"name": 1}]))
    with pytest.raises(CommandError, match=r"figures.json: not a list of figures"):
        KeptFigures(tmp_path)


def test_table_goes_between_marks_of_documents(tmp_path):
    for name in headline.DOCUMENTS:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("before\n<!-- headline -->\nold\n<!-- /headline -->\nafter\n")
    write_into_documents("new", tmp_path)
    for name in headline.DOCUMENTS:
        assert (tmp_path / name).read_text() == (
            "before\n<!-- headline -->\nnew\n<!-- /headline -->\nafter\n"
        )


def test_published_figures_are_kept_by_benchmark(folders, tmp_path):
    publish(table_rows([RATIO], folders(figure(0.5, sources="old"), None)), tmp_path / "kept")
    kept = KeptFigures(tmp_path / "kept" / "spine").find(RATIO.name)
    assert (kept.value, kept.is_current("spine")) == (0.5, False)


def test_the_documents_have_the_table_of_published_figures():
    text = table(table_rows(headlines(), {each.bench: [PUBLISHED / each.bench] for each in headlines()}))
    for name in DOCUMENTS:
        assert text in (ROOT / name).read_text(), name


def test_documents_have_marks_and_headlines_have_figures():
    for name in headline.DOCUMENTS:
        text = (headline.ROOT / name).read_text()
        assert text.count("<!-- headline -->") == text.count("<!-- /headline -->") == 1, name
    assert all(each.name in goals(each.bench) for each in headlines())
