"""Settings, an example and figures in docs/merging.md and docs/merging/ are those of the program."""

import re
from pathlib import Path

from infra.commands.explain import show
from infra.commands.options import CELLS_DIRECTORY, cell_of
from infra.views.figures import zone_rows
from infra.views.story import Story
from schemas.merging.settings import MergingPolicy
from tests.docs.markdown import table_after
from tests.infra.simulation.merging.small import SmallTruth, merging_cell, simulation
from tests.infra.views.merging.logs import JOBS, merged_run
from tests.support.boards import board_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "merging.md").read_text(encoding="utf-8")
PAGES = (PAGE, *(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "merging").glob("*.md")))


def test_settings_of_page_have_defaults() -> None:
    settings = table_after(PAGE, "## Settings")
    assert set(settings) == set(MergingPolicy.model_fields) - {"kind"}
    for name, written in settings.items():
        default = MergingPolicy.model_fields[name].default
        if isinstance(default, tuple):
            assert written == (", ".join(default) or "none"), name
        elif isinstance(default, int | float):
            assert float(written.replace(",", "")) == default, name
        else:
            assert written == default, name


def test_story_of_page_is_printed_by_explain(capsys) -> None:
    shown = PAGE.split("```\nJob two in cell c")[1].split("```")[0]
    story, run = Story("two"), merged_run()
    for entry in run.ledger:
        story.fold_event(entry.offset, entry.envelope)
    for decision in run.decisions:
        story.fold_decision(decision)
    show("c", story, json=False)
    assert f"Job two in cell c{shown}" == capsys.readouterr().out


def test_figures_of_page_are_measured() -> None:
    cell = merging_cell(modes=("temporal",))
    board = board_of(simulation(cell, JOBS, SmallTruth({("a", "a"): 3})))
    page = (ROOT / "docs" / "merging" / "simulation.md").read_text(encoding="utf-8")
    named = table_after(page, "# Merging, simulated")
    told = [name for name, _ in zone_rows(board.zones["z"])]
    for name in told:
        assert name in named or name in ("job completion time", "makespan"), name
    assert set(named) - {"job completion time, makespan"} <= set(told)


def test_what_it_refers_to_is_there() -> None:
    for page in PAGES:
        for path in re.findall(r"`((?:infra|schemas|solvers|streams)/[^`]*)`", page):
            assert (ROOT / path).exists(), path


def test_default_cell_is_cluster_of_paper() -> None:
    (zone,) = cell_of(CELLS_DIRECTORY / "merging.yaml", 0.0, None).zones
    assert zone.policy == MergingPolicy(trial_budget=0.0025)
    assert len(zone.nodes) * zone.gpu_types[0].gpus == 32
