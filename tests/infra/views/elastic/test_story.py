"""`explain` describes elastic jobs, from the log of a cell that borrows and returns servers."""

import pytest

from infra.views.story import Story
from infra.views.words import describe
from schemas.elastic.outcomes import ServersCleared
from schemas.elastic.staffing import ZoneStaffed
from tests.support.elastic import INTERVAL_S, submit, withdraw
from tests.support.elastic_loans import NOTICE_S, LivelyBench, borrowing_cell, loaded, offered, reclaimed


def story(bench: LivelyBench, job_id: str) -> Story:
    story = Story(job_id)
    for decision in bench.decisions:
        story.fold_decision(decision)
    for entry in bench.ledger:
        story.fold_event(entry.offset, entry.envelope)
    return story


def lines(story: Story) -> list[str]:
    return [line for chapter in story.chapters for line in describe(chapter.record)]


@pytest.fixture
def bench() -> LivelyBench:
    """Two servers of its own with job elastic, and three on loan: job one has one of them, job two the
    others."""
    bench = LivelyBench(borrowing_cell(servers=2, lent=4))
    bench.exchange(submit("elastic", 60_000, (6, 12)))
    bench.rounds(1, 1)
    bench.exchange(loaded(0.0, INTERVAL_S), offered("i0", "i1", "i2"))
    bench.exchange(submit("one", 30_000, (4, 4)), submit("two", 1_000, (8, 8)))
    bench.rounds(2, 3)
    return bench


def reclaim(bench: LivelyBench, servers: int, id: str, first_round: int) -> None:
    bench.exchange(reclaimed(servers, first_round * INTERVAL_S + NOTICE_S, id))
    bench.rounds(first_round, first_round + 1)


def test_job_shows_demand_and_start(bench: LivelyBench) -> None:
    said = lines(story(bench, "two"))
    assert said[:5] == [
        "ann queues it, without a bid or a deadline",
        "1000 samples of data.jsonl, to train all weights of models/tiny",
        "8 workers of 1 GPU each; 1 samples/s with one, linear in workers; global batch 64",
        "admitted to the queue",
        "other jobs that wait: 1, shorter ones go first; it takes 2 min with all the workers that it can use",
    ]
    assert "i1 starts 4 of 8 workers: generation 1, from 0 samples" in said


def test_preemption_shows_servers_deadline_and_spared_jobs(
    bench: LivelyBench,
) -> None:
    bench.rounds(4, 9)
    reclaim(bench, 1, "r1", 10)
    (cleared,) = [d.outcome for d in bench.decisions if isinstance(d.outcome, ServersCleared)]
    (victim,), (server,) = cleared.preempted, cleared.servers
    said = lines(story(bench, victim))
    assert f"to give back {server}, by 1970-01-01T00:12:00.000Z: preempts {victim}" in said
    assert any(
        line.startswith("preempted, loses ") and line.endswith(f"gives back {server}") for line in said
    )
    assert any(line.startswith("spared: 1 job on other loaned servers") for line in said)


def test_next_preemption_is_shown_while_true(bench: LivelyBench) -> None:
    bench.rounds(4, 12)
    latest = [d.outcome for d in bench.decisions if isinstance(d.outcome, ZoneStaffed)][-1]
    victim = latest.next_reclaims[0].preempts[0]
    before = lines(story(bench, victim))
    assert "if servers are reclaimed now: 0 of 3 on loan can go without a preemption" in before
    server = latest.next_reclaims[0].preempting[0]
    assert f"  a reclaim of 1 would preempt {victim}, on {server}" in before
    reclaim(bench, 3, "r1", 13)
    bench.rounds(15, 30)
    after = lines(story(bench, victim))
    assert not any("if servers are wanted back" in line for line in after)


def test_story_has_only_latest_zone_report(bench: LivelyBench) -> None:
    bench.exchange(submit("wide", 90_000, (8, 8)))
    bench.rounds(4, 9)
    bench.exchange(submit("short", 60, (8, 8)))
    bench.rounds(10, 19)
    shown = story(bench, "wide")
    standing = [chapter.record for chapter in shown.chapters if isinstance(chapter.record, ZoneStaffed)]
    (latest,) = standing
    assert [job.job_id for job in latest.queue] == ["short", "wide"]
    assert (
        "number 2 in the queue: needs 8 GPUs to start, and takes 3.1 h with all the workers that it can use"
        in lines(shown)
    )


def test_a_job_that_is_over_stands_nowhere(bench: LivelyBench) -> None:
    bench.exchange(submit("wide", 90_000, (8, 8)))
    bench.rounds(4, 9)
    bench.exchange(withdraw("wide"))
    shown = story(bench, "wide")
    assert shown.state == "withdrawn"
    assert not any(isinstance(chapter.record, ZoneStaffed) for chapter in shown.chapters)


def test_shrunk_job_shows_its_cause(bench: LivelyBench) -> None:
    assert not any(line.startswith("makes way") for line in lines(story(bench, "elastic")))
    bench.exchange(submit("small", 500, (2, 2)))
    bench.rounds(4, 5)
    said = lines(story(bench, "elastic"))
    assert "makes way for jobs that waited: 1" in said
    assert any(line.startswith("scaled in to 6 workers, 2 fewer on ") for line in said)
