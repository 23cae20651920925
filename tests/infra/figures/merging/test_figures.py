"""The views of `watch` and of summaries show merging zones."""

import re
from io import StringIO

from rich.console import Console

from infra.figures.board import Board
from infra.figures.merging.figures import MergingFigures
from infra.figures.summary import summarise
from infra.views.figures import headline, job_cells, node_cells, zone_rows
from infra.views.tables import board_view
from schemas.codec import decode_decision
from tests.infra.simulation.merging.small import merging_cell, simulated
from tests.infra.views.merging.logs import board_at, merged_run, watched_lines

END_S = 1e9


def figures(seen: Board) -> MergingFigures:
    return summarise(seen).part(MergingFigures)


def shown(seen: Board) -> str:
    screen = StringIO()
    Console(file=screen, width=250).print(board_view(seen, 10))
    return re.sub(r"[┃│ ]+", " ", screen.getvalue())


def cells(seen: Board, job_id: str) -> dict[str, str]:
    return job_cells(seen, seen.jobs.by_id[job_id])


def test_profile_run_is_shown_as_such() -> None:
    seen = board_at(merged_run(), 0.0)
    assert (figures(seen).profiling, figures(seen).running, figures(seen).waiting) == (1, 0, 0)
    assert cells(seen, "zero")["GPUs"] == "1 on n0, profiling"
    assert figures(seen).used_gpus == 1


def test_profile_run_costs_its_gpu_time() -> None:
    # One job is profiled for all three, from its submission to the second tick.
    costs_gpu_s = [figures(board_at(merged_run(), at_s)).as_json()["profile_gpu_s"] for at_s in (0.0, END_S)]
    assert costs_gpu_s == [0.0, 5.0]


def test_waiting_jobs_have_no_gpus() -> None:
    seen = board_at(merged_run(), 120.0)
    assert cells(seen, "zero") == {"waited": "10 s", "GPUs": "1 on n0 x1"}
    assert cells(seen, "one") == {"waited": "100 s"}
    assert (figures(seen).running, figures(seen).waiting) == (1, 2)


def test_chain_shows_gpus_until_donor_ends() -> None:
    seen = board_at(merged_run(), 700.0)
    assert cells(seen, "one")["merge"] == cells(seen, "two")["merge"] == "one -> two"
    assert "GPUs" in cells(seen, "one")
    assert "GPUs" not in cells(seen, "two"), "it waits for its donor"
    assert headline(figures(seen)) == (
        "0 profiling, 1 running, 1 waiting; 1 of 1 GPUs in use; merged now: one -> two on 1 GPU"
    )
    assert "merged now: one -> two on 1 GPU" in shown(seen)
    later = board_at(merged_run(), 1_300.0)
    assert cells(later, "two")["GPUs"] == "1 on n0 x1"
    assert "merged now" not in headline(figures(later))


def test_two_jobs_in_one_run_both_run() -> None:
    seen = board_at(merged_run("spatial"), 700.0)
    assert (figures(seen).running, figures(seen).used_gpus) == (2, 1)
    assert cells(seen, "one")["merge"] == cells(seen, "two")["merge"] == "one || two"
    assert "merged now: one || two on 1 GPU" in headline(figures(seen))


def test_what_merges_were_worth_is_counted() -> None:
    told = figures(board_at(merged_run(), END_S))
    assert (told.running, told.waiting, told.used_gpus) == (0, 0, 0)
    assert told.saved_s == 300.0
    assert headline(told).endswith("merges: 1 finished, 0 undone, saved 5 min of one GPU")
    assert ("worth of merges", "saved 5 min of one GPU") in list(zone_rows(told))
    assert told.as_json()["merged_jobs_finished"] == 1


def test_undone_merge_is_counted_and_jobs_wait() -> None:
    run = merged_run(helps=0)
    told = figures(board_at(run, 805.0))
    assert headline(told).endswith("merges: 0 finished, 1 undone, saved 0 s of one GPU")
    assert (told.running, told.waiting, told.used_gpus) == (0, 2, 0)
    assert figures(board_at(run, END_S)).as_json()["merged_jobs_undone"] == 1


def test_nodes_show_gpus_in_use() -> None:
    seen = board_at(merged_run(), 700.0)
    assert node_cells(seen, seen.nodes.by_id["n0"]) == {"GPUs": "1"}
    seen = board_at(merged_run(), END_S)
    assert node_cells(seen, seen.nodes.by_id["n0"]) == {}


def test_profiles_plans_and_merges_are_watched() -> None:
    lines = watched_lines(merged_run())
    for line in (
        "zero queued: other jobs that wait: 0; it is profiled first",
        "zero: profiled; not yet estimated, assumed to need 1000 iterations",
        "zero: estimated: 1000 iterations until its target",
        "zone z: a solver is asked to share 1 GPU among 2 jobs; 1 pair of kinds may merge",
        "zone z: a plan gives GPUs to 1 task",
        "zero: started with 1 GPU on n0 x1",
        "two: begins with 1 GPU on n0 x1, from the weights that its donor has left",
        "the merge one -> two is over for two: saved 5 min of one GPU",
    ):
        assert line in lines, line


def test_zone_without_jobs_shows_no_line() -> None:
    told = figures(board_at(simulated(merging_cell(), []), END_S))
    assert (headline(told), told.as_json()["jobs"]) == ("", 0)


def test_log_without_problems_leaves_nothing_out() -> None:
    run = merged_run()
    read = [decode_decision(decision.canonical) for decision in run.decisions]
    seen = Board.of("c", run.ledger, read)
    assert (seen.omissions, figures(seen).as_json()["merged_jobs_finished"]) == (0, 1)
    assert figures(seen).evaluation().fairness is None, "it needs the step times of problems"
