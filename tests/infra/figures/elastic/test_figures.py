"""The views of `watch` and of summaries show elastic zones and loans."""

import re
from io import StringIO

import pytest
from rich.console import Console

from infra.figures.board import Board
from infra.figures.elastic.figures import ElasticFigures
from infra.figures.summary import summarise
from infra.views.figures import headline, job_cells, zone_rows
from infra.views.tables import board_view
from infra.views.words import happening
from schemas.elastic.outcomes import ServersCleared
from tests.support.elastic import INTERVAL_S, submit
from tests.support.elastic_loans import NOTICE_S, LivelyBench, borrowing_cell, loaded, offered, reclaimed


def board(bench: LivelyBench) -> Board:
    return Board.of("c", bench.ledger, bench.decisions)


def figures(seen: Board) -> ElasticFigures:
    return summarise(seen).part(ElasticFigures)


def shown(seen: Board) -> str:
    screen = StringIO()
    Console(file=screen, width=250).print(board_view(seen, 10))
    return re.sub(r"[┃│ ]+", " ", screen.getvalue())


def cells(seen: Board, job_id: str) -> dict[str, str]:
    return job_cells(seen, seen.jobs.by_id[job_id])


@pytest.fixture
def bench() -> LivelyBench:
    """A server of its own with job own, and three on loan: job hit has one of them, and job roomy the others,
    one of which it can do without."""
    bench = LivelyBench(borrowing_cell(servers=1, lent=4))
    bench.exchange(loaded(0.0), offered("i0", "i1", "i2"))
    bench.exchange(submit("own", 300, (4, 4)), submit("hit", 60_000, (4, 4)), submit("roomy", 90_000, (2, 6)))
    bench.rounds(1, 1)
    return bench


def test_job_shows_workers_and_servers(bench: LivelyBench) -> None:
    seen = board(bench)
    assert cells(seen, "own") == {
        "waited": "60 s",
        "workers": "4 of 4",
        "servers": "s0 x4",
        "pool": "training",
    }
    roomy = cells(seen, "roomy")
    assert (roomy["workers"], roomy["pool"]) == ("6 of 2-6", "loaned")
    assert roomy["servers"].count("x") == 2


def test_job_of_next_reclaim_is_marked(bench: LivelyBench) -> None:
    seen = board(bench)
    assert cells(seen, "roomy")["next reclaim"] == "preempted if 2 servers must go"
    assert cells(seen, "hit")["next reclaim"] == "preempted if 3 servers must go"
    assert "next reclaim" not in cells(seen, "own")
    assert "1 of 3 servers on loan can go back without a preemption, one more preempts roomy" in shown(seen)


def test_waiting_job_has_no_servers(bench: LivelyBench) -> None:
    bench.exchange(submit("late", 600, (2, 2)))
    bench.rounds(2, 3)
    waiting = cells(board(bench), "late")
    assert waiting["workers"] == "2 of 2", "what others can spare it gets at once"
    bench.exchange(submit("later", 100_000, (4, 4)), submit("last", 200_000, (4, 4)))
    bench.rounds(4, 6)
    assert cells(board(bench), "last") == {"waited": "3 min", "workers": "0 of 4"}


def test_counts_and_mean_times_match_log(bench: LivelyBench) -> None:
    bench.rounds(2, 5)
    bench.end("own")
    bench.exchange(loaded(0.5, 5 * INTERVAL_S), reclaimed(2, 5 * INTERVAL_S + NOTICE_S))
    bench.rounds(6, 9)
    seen = board(bench)
    told = figures(seen)
    results = told.results()
    assert (results.jct.mean_s, results.queuing.mean_s) == (5 * INTERVAL_S, INTERVAL_S)
    assert results.preemptions == 1
    assert (told.running, told.waiting) == (2, 0), "the preempted one has the server of its own by now"
    assert len(cells(seen, "hit")["servers"].split()) == 2
    assert cells(seen, "own") == {"waited": "60 s"}
    summary = summarise(seen)
    assert summary.as_json()["zones"]["z"]["preemptions"] == 1
    assert (summary.servers_lent, summary.reclaims) == (3, {"in_time": 1})
    assert dict(zone_rows(told))["job completion time"].startswith("mean 300 s")
    assert summary.utilisation is None, "jobs bring models of their own"


def test_gpus_in_use_include_those_on_loan(bench: LivelyBench) -> None:
    told = figures(board(bench))
    assert (told.running, told.waiting, told.workers) == (3, 0, 4 + 4 + 6)
    assert dict(zone_rows(told))["GPUs in use"] == "14 of 16"


def test_zone_without_jobs_shows_no_line() -> None:
    told = figures(board(LivelyBench(borrowing_cell())))
    assert (headline(told), told.as_json()["jobs"]) == ("", 0)


def test_servers_are_shown_by_owner_and_user(bench: LivelyBench) -> None:
    text = shown(board(bench))
    assert " inf 0% inf 1 – " in text
    assert " inf 0% z 3 0 " in text
    assert " z – z 1 – " in text


def test_reclaim_is_shown_until_all_are_back(bench: LivelyBench) -> None:
    due_s = INTERVAL_S + NOTICE_S
    bench.exchange(loaded(0.5, INTERVAL_S), reclaimed(2, due_s))
    assert " inf 50% z 3 2 " in shown(board(bench))
    assert "reclaim r1 of zone inf: 0 of 2 servers are back, due by 1970-01-01T00:03:00.000Z" in shown(
        board(bench)
    )
    assert "to be back by 1970-01-01T00:03:00.000Z" in shown(board(bench))
    bench.rounds(2, 2)
    assert "reclaim r1" not in shown(board(bench))


def test_loans_and_their_effects_are_watched(bench: LivelyBench) -> None:
    bench.exchange(loaded(0.5, INTERVAL_S), reclaimed(1, INTERVAL_S + NOTICE_S))
    bench.rounds(2, 2)
    bench.exchange(reclaimed(2, 2 * INTERVAL_S + NOTICE_S, "r2"))
    bench.rounds(3, 3)
    heard = [line for decision in bench.decisions if (line := happening(decision)) is not None]
    harmless, harmful = [d.outcome for d in bench.decisions if isinstance(d.outcome, ServersCleared)]
    (server,), (kept,) = harmless.servers, {"i1", "i2"} - {*harmless.servers}
    servers, victims = ", ".join(harmful.servers), ", ".join(harmful.preempted)
    first_s, second_s = "1970-01-01T00:03:00.000Z", "1970-01-01T00:04:00.000Z"
    for line in (
        "i0 of zone inf is on loan to zone z",
        "own queued with 0 other jobs: takes 75 s at least",
        "own started with 4 workers on s0 x4 (training)",
        f"{server} drains: it returns from zone z to inf by {first_s}",
        f"zone z: to give back {server}, by {first_s}: preempts no job, scales in roomy",
        f"roomy continues with 4 workers, 2 fewer on {kept} x4 (loaned): gives back {server}",
        f"zone z: to give back {servers}, by {second_s}: preempts {victims}",
        "hit preempted, loses 4 workers and is queued again: gives back i0",
        f"{server} is back from zone z in zone inf",
        "reclaim r1 of zone inf is over, all servers are back in time",
    ):
        assert line in heard, line
