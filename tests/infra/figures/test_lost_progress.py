"""Progress of a job where a node was killed and its run goes on from a checkpoint."""

import pytest

from infra.commands.explain import show
from infra.figures.board import Board
from infra.views.story import Story
from tests.support.cells import Bench, bid, configuration, failed, nodes_by_slot, progressed, started, tick


@pytest.fixture
def bench() -> Bench:
    """Return a cell with a job that had 40 samples done when its node was killed, and continues at 30."""
    bench = Bench()
    bench.send(configuration(), tick(-1))
    (admitted,) = bench.send(bid())
    (first, node), (second, other) = sorted(nodes_by_slot(admitted).items())[:2]
    bench.send(tick(first), started(node, first, 0), progressed(node, first, 40, complete=False))
    bench.send(*(tick(slot) for slot in range(first + 1, second + 1)))
    bench.send(started(other, second, 30))
    bench.send(failed(node, first, 40, permanent=False))
    return bench


def explained(bench: Bench, capsys: pytest.CaptureFixture[str]) -> list[str]:
    story = Story("j")
    for decision in bench.decisions:
        story.fold_decision(decision)
    for entry in bench.ledger:
        story.fold_event(entry.offset, entry.envelope)
    show("c", story, json=False)
    return [line.strip() for line in capsys.readouterr().out.splitlines()]


def test_explain_shows_progress_lost_with_node(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    lines = explained(bench, capsys)
    (at,) = [at for at, line in enumerate(lines) if line.endswith("at 30 samples")]
    assert lines[at + 1] == "40 samples were reported before; those after 30 are lost"


def test_explain_marks_ignored_reports(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    lines = explained(bench, capsys)
    (at,) = [at for at, line in enumerate(lines) if "fails at 40 samples" in line]
    assert lines[at + 1].startswith("ignored (stale_report): job j")


def test_late_report_of_older_run_changes_no_progress(bench: Bench) -> None:
    board = Board("c")
    for entry in bench.ledger:
        board.fold_event(entry)
    for decision in bench.decisions:
        board.fold_decision(decision)
    assert board.jobs.by_id["j"].samples_done == 30
