"""The views of `watch`, of summaries and of `explain` show an experts zone."""

from infra.commands.explain import show
from infra.figures.board import Board
from infra.figures.experts.figures import ExpertsFigures
from infra.figures.summary import summarise
from infra.views.experts.view import ExpertsView
from infra.views.figures import headline, job_cells, zone_rows
from infra.views.story import Story
from infra.views.words import describe, happening
from schemas.experts.reports import ExpertsProfiled, LayerRouting
from schemas.experts.workload import Conversion, GatingRule
from schemas.fleet import NodeSilent
from tests.streams.experts.test_zone import Script, released
from tests.support.moe import (
    CELL,
    EVEN,
    SKEWED,
    TURNED,
    gone,
    online,
    profiled,
    progressed,
    routed,
    serving,
    started,
    training,
)


def script() -> Script:
    """Service `s` has all devices and is placed twice; job `t` waits."""
    script = Script()
    leader, _ = script.start("s", serving(4))
    script.send(profiled(leader, SKEWED, EVEN))
    for _ in range(2):
        script.send(routed(leader, TURNED, EVEN, revision=1))
    script.start("t", training(2), "ben")
    script.pass_time(20.0)
    return script


def board(script: Script) -> Board:
    return Board.of(CELL, script.bench.ledger, script.bench.decisions)


def story_of(script: Script, job_id: str) -> Story:
    story = Story(job_id)
    for decision in script.bench.decisions:
        story.fold_decision(decision)
    for entry in script.bench.ledger:
        story.fold_event(entry.offset, entry.envelope)
    return story


def lines_about(script: Script, job_id: str) -> list[str]:
    return [line for chapter in story_of(script, job_id).chapters for line in describe(chapter.record)]


def watched_lines(script: Script) -> list[str]:
    return [line for decision in script.bench.decisions if (line := happening(decision)) is not None]


def test_jobs_and_nodes_are_shown_with_their_ranks():
    seen = board(script())
    jobs = seen.jobs.by_id
    assert job_cells(seen, jobs["s"])["ranks"] == "4 ranks on n0 x2, n1 x2"
    assert job_cells(seen, jobs["s"])["placement"].startswith("2, busiest 1.0")
    assert job_cells(seen, jobs["t"])["ranks"] == "waits for 2"


def test_service_stays_on_nodes_until_runs_end():
    script = Script()
    leader, other = script.start("s", serving(4))
    script.send(started(leader), started(other), profiled(leader, SKEWED, EVEN), routed(leader, TURNED, EVEN))
    assert board(script).jobs.by_id["s"].nodes == {leader.node, other.node}
    script.send(progressed(other, 0, complete=True))
    assert board(script).jobs.by_id["s"].nodes == {leader.node}


def test_summary_has_runs_and_placements():
    figures = summarise(board(script())).part(ExpertsFigures)
    assert (figures.running, figures.waiting, figures.ranks) == (1, 1, 4)
    assert dict(zone_rows(figures))["devices with ranks"] == "4 of 4"
    assert figures.as_json()["placements"] == {"initial": 1, "popularity_shifted": 1, "devices_changed": 0}
    assert dict(zone_rows(figures))["placements"] == "1 initial, 1 popularity shifted, 0 devices changed"
    assert headline(figures).startswith("1 running on 4 ranks, 1 queued, busiest device 1.")


def test_zone_without_jobs_shows_no_line():
    figures = summarise(board(Script())).part(ExpertsFigures)
    assert (headline(figures), figures.as_json()["jobs"]) == ("", 0)


def test_service_shows_placements_with_reasons():
    said = lines_about(script(), "s")
    for line in (
        "serves tiny to prompts of prompts.jsonl, 1000 requests",
        "other jobs that wait: 0; it needs 4 devices at once",
        "started with 4 ranks on n0 x2, n1 x2, generation 1",
        "n0 runs 2 of 4 ranks: generation 1, from 0 samples",
        "n0 has profiled it: 10 sample paths of 3 layers; 70% of estimates were right",
        "20000 tokens over 2 layers of 8 experts; up to 80% of a layer go to one expert",
        "its experts are placed by what its profile has counted: placement 1",
        "its placement follows the tokens, which go to other experts than before: placement 2",
        "n1 gets placement 2, of 1 layer",
    ):
        assert line in said, line
    assert any(line.startswith("layer 0: busiest device ") and "2 reports in a row" in line for line in said)


def test_explain_ends_with_figures_of_live_job(capsys):
    show(CELL, story_of(script(), "s"), json=False)
    last = capsys.readouterr().out.splitlines()[-1].strip()
    assert last.startswith("latest figures  ranks 4 ranks on n0 x2, n1 x2, placement 2, busiest 1.0")


def test_preempted_job_shows_its_cause():
    script = Script(1, patience_s=60.0)
    script.start("s", serving(2))
    script.start("t", training(2), "ben")
    script.pass_time(59.0)
    assert "gives way and is queued again: job t of user ben has waited for 60 s" in lines_about(script, "s")
    assert dict(zone_rows(summarise(board(script)).part(ExpertsFigures)))["jobs that gave way"] == "1"


def test_training_job_shows_gating():
    assert "gating top2; 2 ranks, global batch 32" in lines_about(script(), "t")
    job = training(2).model_copy(
        update={
            "gating": GatingRule(mode="adaptive", threshold=0.1, threshold_on="all"),
            "conversion": Conversion(experts=4, initialization="random"),
        }
    )
    assert ExpertsView().words(job)[-1] == (
        "4 experts replace each feed-forward network; gating adaptive, threshold 0.1 on the probabilities of "
        "all experts; 2 ranks, global batch 32"
    )


def test_profile_of_training_is_named():
    report = ExpertsProfiled(
        cell=CELL,
        node="n0",
        run_id="1/s",
        job_id="s",
        samples_done=0,
        layers=(LayerRouting(tokens=(3, 1)),),
        path_length=3,
        paths=10,
        accuracy=None,
        profiled_in="training",
    )
    assert (
        ExpertsView().words(report)[0]
        == "n0 has read the profile of its training: 10 sample paths of 3 layers"
    )


def test_lost_node_is_shown():
    lost = script()
    outcomes = lost.send(NodeSilent(cell=CELL, node="n1", silent_s=60.0))
    lost.send(gone(released(outcomes)[0]), online("n1"))
    lost.pass_time()
    said = lines_about(lost, "s")
    assert "loses its ranks and is queued again (node_lost): node n1 is down" in said
    assert "n1 gives up its ranks of generation 1 (node_lost)" in said
    assert "resumed with 4 ranks on n0 x2, n1 x2, generation 2" in said


def test_ranks_and_placements_are_watched():
    said = watched_lines(script())
    assert "s queued with 0 other jobs: needs 4 ranks" in said
    assert any(
        line.startswith("s placement 2 (popularity_shifted), 1 layer: the busiest device ") for line in said
    )
