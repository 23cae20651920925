"""Cases of an elastic zone: events in, decisions out."""

import pytest

from schemas.base import Outcome
from schemas.cells import GpuType, Node
from schemas.changes import NodeRetired, ZoneConfigured
from schemas.decisions import (
    EventIgnored,
    JobAdmitted,
    JobCompleted,
    JobQuoted,
    JobRefunded,
    JobRejected,
    JobWithdrawn,
    NodeMoved,
    ZoneAccepted,
)
from schemas.elastic.commands import WorkersAssigned, WorkersReleased
from schemas.elastic.outcomes import JobResized
from schemas.elastic.workload import ElasticTerms
from schemas.fleet import CommandRefused, NodeOffline, NodeOnline, NodeSilent, RefusedRun
from schemas.jobs import JobQuoteRequested
from streams.cell.state_machine import Cell
from tests.support.elastic import (
    CELL,
    GPU_TYPES,
    ZONE,
    ElasticBench,
    commands,
    elastic_cell,
    elastic_zone,
    failed,
    finished,
    gone,
    progressed,
    started,
    submit,
    tick,
    withdraw,
    workload,
)


@pytest.fixture
def bench() -> ElasticBench:
    bench = ElasticBench()
    bench.send(elastic_cell(servers=2), tick(0.0))
    return bench


def resized(outcomes: list[Outcome]) -> list[tuple[str, str, int]]:
    """Job, reason and workers of each change."""
    return [(o.job_id, o.reason, o.workers) for o in outcomes if isinstance(o, JobResized)]


def assigned(outcomes: list[Outcome]) -> list[WorkersAssigned]:
    return [o for o in outcomes if isinstance(o, WorkersAssigned)]


def released(outcomes: list[Outcome]) -> list[WorkersReleased]:
    return [o for o in outcomes if isinstance(o, WorkersReleased)]


def run(bench: ElasticBench, outcomes: list[Outcome]) -> list[WorkersAssigned]:
    """Have the nodes start their assigned workers, and return the commands."""
    orders = assigned(outcomes)
    bench.send(*map(started, orders))
    return orders


class TestStarting:
    def test_job_queues_at_once_and_starts_next_round(self, bench):
        (queued,) = bench.send(submit("j"))
        assert isinstance(queued, JobAdmitted)
        assert (queued.reason, queued.payment_micros) == ("queued", 0)
        assert bench.send(tick(59.0)) == []
        outcomes = bench.send(tick(60.0))
        assert resized(outcomes) == [("j", "started", 1)]
        (order,) = assigned(outcomes)
        assert (order.node, order.run_id, order.generation) == ("s0", "1/j", 1)
        assert [(member.node, member.workers) for member in order.members] == [("s0", 1)]
        assert order.resumes
        assert order.expected_samples_per_s == 1.0

    def test_members_of_job_get_same_command(self, bench):
        bench.send(submit("j", workers=(6, 6)))
        orders = assigned(bench.send(tick(60.0)))
        assert [order.node for order in orders] == ["s0", "s1"]
        assert {order.members for order in orders} == {orders[0].members}
        assert [(member.node, member.workers) for member in orders[0].members] == [("s0", 4), ("s1", 2)]

    def test_shorter_jobs_start_first_whenever_they_came(self, bench):
        bench.send(submit("long", 900, (8, 8)), submit("short", 90, (8, 8)))
        assert resized(bench.send(tick(60.0))) == [("short", "started", 8)]

    def test_job_that_does_not_fit_lets_others_pass(self, bench):
        bench.send(submit("first", 10, (5, 5)), tick(60.0), submit("large", 60, (5, 5)), submit("small", 600))
        assert resized(bench.send(tick(120.0))) == [("small", "started", 1)]

    def test_a_job_that_could_never_start_is_rejected(self, bench):
        (outcome,) = bench.send(submit("wide", workers=(9, 9)))
        assert isinstance(outcome, JobRejected)
        assert outcome.reason == "larger_than_the_zone"
        assert outcome.facts == {"min_workers": 9, "gpus_per_worker": 1, "room_workers": 8}
        (outcome,) = bench.send(submit("deep", gpus_per_worker=5))
        assert isinstance(outcome, JobRejected)
        assert outcome.facts["room_workers"] == 0


class TestSlowServers:
    def test_slower_servers_are_used_within_worker_limit(self):
        cell, slowest = (
            elastic_cell(5),
            GpuType(name="K80", samples_per_s=400.0 / 100, memory_gib=64.0, gpus=4),
        )
        own = cell.zones[0]
        nodes = (
            *own.nodes,
            *(Node(id=f"t{number:02}", gpu_type="T4", tariff="flat") for number in range(15)),
            Node(id="k0", gpu_type="K80", tariff="flat"),
        )
        changes = {"nodes": nodes, "gpu_types": (*own.gpu_types, slowest)}
        bench = ElasticBench()
        bench.send(cell.model_copy(update={"zones": (own.model_copy(update=changes),)}), tick(0.0))
        bench.send(submit("long", 90_000, (20, 20)), tick(60.0), submit("j", 900, (20, 20), fungible=True))
        (order, *_) = assigned(bench.send(tick(120.0)))
        assert [member.node for member in order.members] == [f"t{number:02}" for number in range(15)]


class TestScatteredRoom:
    @pytest.mark.parametrize("scheme", ["lyra", "afs", "pollux"])
    def test_unplaced_jobs_leave_gpus_in_same_round(self, scheme):
        bench = ElasticBench()
        bench.send(elastic_cell(4, scheme=scheme), tick(0.0))
        bench.send(*(submit(f"long-{number}", 90_000, gpus_per_worker=3) for number in range(4)))
        run(bench, bench.send(tick(60.0)))
        # An idle GPU on each server is as many as one of these takes.
        bench.send(*(submit(f"wide-{number}", 10, gpus_per_worker=4) for number in range(2)))
        bench.send(*(submit(f"small-{number}") for number in range(4)))
        changes = resized(bench.send(tick(120.0)))
        assert sorted(changes) == [(f"small-{number}", "started", 1) for number in range(4)]

    @pytest.mark.parametrize("scheme", ["fifo", "gandiva"])
    def test_strict_order_blocks_later_jobs(self, scheme):
        bench = ElasticBench()
        bench.send(elastic_cell(4, scheme=scheme), tick(0.0))
        bench.send(*(submit(f"long-{number}", 90_000, gpus_per_worker=3) for number in range(4)))
        run(bench, bench.send(tick(60.0)))
        bench.send(submit("first"), submit("wide", 10, gpus_per_worker=2), submit("last"))
        assert resized(bench.send(tick(120.0))) == [("first", "started", 1)]

    def test_wide_jobs_start_as_room_allows(self):
        bench = ElasticBench()
        bench.send(elastic_cell(5), tick(0.0))
        bench.send(*(submit(f"long-{number}", 90_000, gpus_per_worker=3) for number in range(4)))
        run(bench, bench.send(tick(60.0)))
        bench.send(*(submit(f"wide-{number}", 10, gpus_per_worker=4) for number in range(9)))
        bench.send(*(submit(f"small-{number}") for number in range(4)))
        changes = resized(bench.send(tick(120.0)))
        assert changes == [
            ("wide-0", "started", 1),
            *((f"small-{number}", "started", 1) for number in range(4)),
        ]

    def test_flexible_workers_are_released_where_needed(self, bench):
        # Each server has two workers that its jobs cannot lose and two that they can.
        bench.send(*(submit(name, 60_000, (2, 4)) for name in ("a", "b")))
        run(bench, bench.send(tick(60.0)))
        bench.send(submit("pair", 10, gpus_per_worker=2), submit("wide", 20, gpus_per_worker=4))
        changes = resized(bench.send(tick(120.0)))
        assert ("pair", "started", 1) in changes
        assert sum(workers for name, _, workers in changes if name in "ab") == 6

    def test_unplaced_workers_leave_gpus_to_other_jobs(self, bench):
        bench.send(*(submit(name, 900_000, (3, 3)) for name in ("a", "b")))
        run(bench, bench.send(tick(60.0)))
        assert [bench.described["nodes"][server]["free"] for server in ("s0", "s1")] == [0, 2]
        bench.send(submit("wide", 60_000, (1, 2)), submit("other", 600, (1, 1)))
        assert len(resized(bench.send(tick(120.0)))) == 2


class TestScaling:
    def test_elastic_job_uses_idle_servers_until_needed(self, bench):
        bench.send(submit("j", 6_000, (2, 8)))
        first = bench.send(tick(60.0))
        assert resized(first) == [("j", "started", 8)]
        run(bench, first)
        bench.send(submit("other", 600, (3, 3)))
        outcomes = bench.send(tick(120.0))
        assert resized(outcomes) == [("j", "scaled_in", 5), ("other", "started", 3)]
        (change,) = [o for o in outcomes if isinstance(o, JobResized) and o.job_id == "j"]
        assert change.facts == {"case": "jobs_waited", "jobs": 1}
        assert all(order.generation == 2 and not order.resumes for order in assigned(outcomes)[:2])

    def test_elastic_job_regrows_after_other_ends(self, bench):
        bench.send(submit("j", 6_000, (2, 8)), submit("other", 60, (4, 4)))
        orders = run(bench, bench.send(tick(60.0)))
        (other,) = [order for order in orders if order.job_id == "other"]
        (ended,) = bench.send(finished(other))
        assert isinstance(ended, JobCompleted)
        outcomes = bench.send(tick(120.0))
        assert resized(outcomes) == [("j", "scaled_out", 8)]
        survivors = {order.node for order in orders if order.job_id == "j"}
        assert assigned(outcomes)[0].members[0].node in survivors, "whoever knows the job's state leads"

    def test_left_server_gets_release_and_others_continue(self, bench):
        bench.send(submit("j", 6_000, (4, 8)))
        run(bench, bench.send(tick(60.0)))
        bench.send(submit("other", 60, (4, 4)))
        outcomes = bench.send(tick(120.0))
        (leaver,) = released(outcomes)
        assert (leaver.reason, leaver.generation, leaver.by_s) == ("scaled_in", 1, None)
        (stays,) = [order for order in assigned(outcomes) if order.job_id == "j"]
        assert stays.node != leaver.node
        assert not bench.zone.free_to_leave([leaver.node]), "until its workers are gone, whoever else comes"

    def test_job_is_resized_only_after_forming(self, bench):
        bench.send(submit("j", 6_000, (2, 8)))
        bench.send(tick(60.0))
        bench.send(submit("other", 600, (3, 3)))
        assert resized(bench.send(tick(120.0))) == []

    def test_useless_workers_are_not_assigned(self, bench):
        flat = (1.0, 1.9, 1.9, 1.9)
        bench.send(submit("flat", 6_000, (1, 4), speedup=flat))
        outcomes = bench.send(tick(60.0))
        assert resized(outcomes) == [("flat", "started", 2)]
        assert assigned(outcomes)[0].expected_samples_per_s == 1.9


class TestEnding:
    def test_job_ends_when_all_nodes_report(self, bench):
        bench.send(submit("j", 60, (6, 6)))
        leader, other = run(bench, bench.send(tick(60.0)))
        assert bench.send(finished(leader)) == []
        assert [bench.described["nodes"][node]["is_busy"] for node in ("s0", "s1")] == [False, True]
        (outcome,) = bench.send(progressed(other, 60, complete=True))
        assert isinstance(outcome, JobCompleted)
        assert (outcome.samples_done, outcome.payment_micros) == (60, 0)

    @pytest.fixture
    def done_early(self, bench) -> tuple[WorkersAssigned, WorkersAssigned]:
        """A job's leader, and another member whose workers were gone with the last of the work."""
        bench.send(submit("j", 60, (6, 6), keeps_checkpoints=False))
        leader, other = run(bench, bench.send(tick(60.0)))
        bench.send(progressed(leader, 30))
        assert bench.send(progressed(other, 60, complete=True)) == []
        return leader, other

    def test_member_done_before_leader_is_not_lost(self, bench, done_early):
        leader, other = done_early
        assert bench.described["nodes"][other.node]["is_busy"], (
            "its GPUs are the job's until the leader has ended"
        )
        assert bench.send(tick(120.0)) == []
        (outcome,) = bench.send(finished(leader))
        assert isinstance(outcome, JobCompleted)
        assert not bench.described["nodes"][other.node]["is_busy"]

    def test_leader_failing_last_awaits_no_member(self, bench, done_early):
        leader, _ = done_early
        outcomes = bench.send(failed(leader, error="no room for the result"))
        assert resized(outcomes) == [("j", "run_failed", 0)]
        assert released(outcomes) == []
        assert resized(bench.send(tick(120.0))) == [("j", "resumed", 6)]

    def test_completed_member_gets_no_release(self, bench, done_early):
        leader, _ = done_early
        outcomes = bench.send(withdraw("j"))
        assert [order.node for order in released(outcomes)] == [leader.node]
        (outcome,) = bench.send(*map(gone, released(outcomes)))
        assert isinstance(outcome, JobWithdrawn)

    def test_completed_node_lost_later_counts_as_lost(self, bench, done_early):
        leader, other = done_early
        outcomes = bench.send(NodeSilent(cell=CELL, node=other.node, silent_s=60.0))
        assert resized(outcomes) == [("j", "node_lost", 0)]
        (outcome,) = bench.send(finished(leader))
        assert isinstance(outcome, JobCompleted), "the leader was done all the same"

    def test_completion_is_decided_once(self, bench, done_early):
        _, other = done_early
        (outcome,) = bench.send(progressed(other, 60, complete=True))
        assert isinstance(outcome, EventIgnored)

    def test_job_completed_during_resize_is_over(self, bench):
        bench.send(submit("j", 600, (2, 8)), submit("other", 60, (6, 6)))
        orders = run(bench, bench.send(tick(60.0)))
        (job,) = [order for order in orders if order.job_id == "j"]
        others = [order for order in orders if order.job_id == "other"]
        bench.send(finished(others[0]), *(progressed(order, 60, complete=True) for order in others[1:]))
        bench.send(tick(120.0))
        outcomes = bench.send(finished(job))
        assert resized(outcomes) == [("j", "stopped", 0)]
        told = released(outcomes)
        (last,) = bench.send(*map(gone, told))
        assert isinstance(last, JobCompleted)

    def test_a_waiting_job_is_withdrawn_at_once(self, bench):
        bench.send(submit("j"))
        (outcome,) = bench.send(withdraw("j"))
        assert isinstance(outcome, JobWithdrawn)
        assert resized(bench.send(tick(60.0))) == []

    def test_running_job_is_withdrawn_after_its_workers_end(self, bench):
        bench.send(submit("j"))
        run(bench, bench.send(tick(60.0)))
        outcomes = bench.send(withdraw("j"))
        (order,) = released(outcomes)
        assert order.reason == "withdrawn"
        (again,) = bench.send(withdraw("j"))
        assert isinstance(again, EventIgnored)
        assert again.reason == "job_ending"
        (outcome,) = bench.send(gone(order))
        assert isinstance(outcome, JobWithdrawn)

    def test_permanently_failed_run_ends_job(self, bench):
        bench.send(submit("j", workers=(6, 6)))
        leader, _ = run(bench, bench.send(tick(60.0)))
        outcomes = bench.send(failed(leader, permanent=True))
        (order,) = released(outcomes)
        assert order.reason == "withdrawn"
        (outcome,) = bench.send(gone(order))
        assert isinstance(outcome, JobRefunded)
        assert outcome.reason == "run_failed"
        assert outcome.facts == {"node": leader.node, "run_id": leader.run_id}

    def test_failed_run_is_retried_three_times(self, bench):
        bench.send(submit("j"))
        for attempt, time_s in enumerate((60.0, 120.0, 180.0)):
            (order,) = run(bench, bench.send(tick(time_s)))
            outcomes = bench.send(failed(order))
            if attempt < 2:
                assert resized(outcomes) == [("j", "run_failed", 0)]
        assert isinstance(outcomes[-1], JobRefunded)

    def test_refused_workers_fail_and_free_gpus(self, bench):
        bench.send(submit("j"))
        for attempt, time_s in enumerate((60.0, 120.0, 180.0)):
            (order,) = assigned(bench.send(tick(time_s)))
            refused = CommandRefused(
                cell=CELL,
                node=order.node,
                command_id="c-7-0",
                runner="elastic",
                reason="impossible",
                detail="6 workers are more than the node has GPUs",
                runs=(RefusedRun(run_id=order.run_id, job_id="j"),),
            )
            outcomes = bench.send(refused)
            if attempt < 2:
                assert resized(outcomes) == [("j", "run_failed", 0)]
        assert isinstance(outcomes[-1], JobRefunded)

    @pytest.mark.parametrize("keeps_checkpoints", [True, False])
    def test_repeated_failure_at_same_place_ends_job(self, bench, keeps_checkpoints):
        bench.send(submit("j", keeps_checkpoints=keeps_checkpoints))
        failures = 0
        while "j" in bench.described["jobs"]:
            (order,) = run(bench, bench.send(tick(60.0 * (failures + 1))))
            bench.send(progressed(order, 100), failed(order))
            failures += 1
            assert failures <= 3
        assert failures == 3

    def test_reports_of_runs_that_are_over_change_nothing(self, bench):
        bench.send(submit("j"))
        (order,) = run(bench, bench.send(tick(60.0)))
        stale = order.model_copy(update={"run_id": "7/j"})
        outcome, disowned = bench.send(progressed(stale, 5))
        assert isinstance(outcome, EventIgnored)
        assert outcome.reason == "stale_report"
        assert (disowned.node, disowned.run_id) == (order.node, "7/j")


class TestLostNodes:
    def lose(self, bench: ElasticBench, node: str) -> list[Outcome]:
        return bench.send(NodeSilent(cell=CELL, node=node, silent_s=60.0))

    def test_job_on_lost_node_restarts_after_others_end(self, bench):
        bench.send(submit("j", 600, (6, 6)))
        leader, _ = run(bench, bench.send(tick(60.0)))
        bench.send(progressed(leader, 120))
        outcomes = self.lose(bench, "s1")
        assert resized(outcomes) == [("j", "node_lost", 0)]
        order, to_lost = released(outcomes)
        assert (order.node, order.reason) == ("s0", "node_lost")
        assert (to_lost.node, to_lost.reason) == ("s1", "node_lost"), "for when it is back"
        bench.send(submit("small", 10, (2, 2)))
        bench.send(tick(120.0))
        assert resized(bench.send(gone(order, samples_done=100), tick(180.0))) == []
        self.assert_resumes(bench, 100)

    def assert_resumes(self, bench: ElasticBench, samples_done: int) -> None:
        job = bench.job("j")
        assert (job["state"], job["samples_done"]) == ("waiting", samples_done)

    def test_a_job_that_keeps_no_checkpoints_starts_over(self, bench):
        bench.send(submit("j", 600, (2, 2), keeps_checkpoints=False))
        (order,) = run(bench, bench.send(tick(60.0)))
        bench.send(progressed(order, 120))
        self.lose(bench, "s0")
        outcomes = bench.send(tick(120.0))
        assert resized(outcomes) == [("j", "resumed", 2)]
        (order,) = assigned(outcomes)
        assert (order.node, order.resume_samples, order.generation) == ("s1", 0, 2)

    def test_node_down_gets_no_workers(self, bench):
        self.lose(bench, "s0")
        bench.send(submit("j", 600, (4, 4)))
        (order,) = assigned(bench.send(tick(60.0)))
        assert order.node == "s1"


class TestLeavingServers:
    def test_flexible_workers_leave_a_server_that_is_retired(self, bench):
        bench.send(submit("j", 6_000, (4, 8)))
        run(bench, bench.send(tick(60.0)))
        bench.send(NodeRetired(cell=CELL, node="s1"))
        outcomes = bench.send(tick(70.0))
        assert resized(outcomes) == [("j", "servers_reclaimed", 4)]
        (order,) = released(outcomes)
        assert order.node == "s1"
        moved = [o for o in bench.send(gone(order)) if isinstance(o, NodeMoved)]
        assert [(move.node, move.to_zone) for move in moved] == [("s1", None)]

    def test_job_keeps_server_that_no_reclaim_needs(self, bench):
        bench.send(submit("j", 600, (2, 2)), submit("k", 600, (4, 4)))
        (first, *_) = orders = run(bench, bench.send(tick(60.0)))
        node = orders[-1].node
        bench.send(NodeRetired(cell=CELL, node=node))
        assert commands(bench.send(tick(70.0))) == []
        assert not bench.zone.free_to_leave([node])
        assert first is not None

    def test_indispensable_server_stays_until_job_ends(self, bench):
        bench.send(submit("j", 60, (6, 6)))
        bench.send(NodeRetired(cell=CELL, node="s1"))
        assert not bench.zone.free_to_leave(["s1"])
        (outcome, *_) = bench.send(withdraw("j"))
        assert isinstance(outcome, JobWithdrawn)
        assert "s1" not in bench.described["nodes"]

    def test_one_of_two_indispensable_servers_stays(self):
        bench = ElasticBench()
        bench.send(elastic_cell(3), tick(0.0), submit("all", 60, (12, 12)))
        orders = run(bench, bench.send(tick(60.0)))
        bench.send(submit("j", 60, (6, 6)))
        bench.send(*(NodeRetired(cell=CELL, node=node) for node in ("s1", "s2")))
        bench.send(finished(orders[0]), *(gone(order) for order in orders[1:]))
        assert list(bench.described["nodes"]) == ["s0", "s2"]
        assert resized(bench.send(tick(120.0))) == [("j", "started", 6)]


class TestChangedConfigurations:
    def configure(self, bench: ElasticBench, gpus: int = 4, **policy) -> list[Outcome]:
        zone = elastic_zone(2, **policy)
        types = tuple(gpu.model_copy(update={"gpus": gpus}) for gpu in zone.gpu_types)
        return bench.send(ZoneConfigured(cell=CELL, zone=zone.model_copy(update={"gpu_types": types})))

    def test_idle_servers_are_what_their_type_is_now(self, bench):
        self.configure(bench, gpus=8)
        bench.send(submit("wide", workers=(16, 16)))
        (first, second) = assigned(bench.send(tick(60.0)))
        assert [member.workers for member in first.members] == [8, 8]
        assert first.members == second.members

    def test_a_server_with_workers_keeps_its_gpus(self, bench):
        bench.send(submit("j"))
        run(bench, bench.send(tick(60.0)))
        (refused,) = self.configure(bench, gpus=8)
        assert isinstance(refused, EventIgnored)
        assert refused.reason == "breaks_a_promise"
        assert refused.facts == {"zone": ZONE, "case": "server_in_use", "server": "s0"}

    def test_server_groups_may_leave_during_jobs(self, bench):
        bench.send(submit("j", 6_000, (2, 8)))
        run(bench, bench.send(tick(60.0)))
        (accepted,) = self.configure(bench, groups_elastic_jobs=False)
        assert isinstance(accepted, ZoneAccepted)
        bench.send(submit("other", 600, (3, 3)))
        assert resized(bench.send(tick(120.0))) == [("j", "scaled_in", 5), ("other", "started", 3)]


class TestQuotes:
    def ask(self, bench: ElasticBench, **fields) -> JobQuoted:
        request = JobQuoteRequested(
            cell=CELL, quote_id="q", user="ann", zone=ZONE, workload=workload(**fields), terms=ElasticTerms()
        )
        (answer,) = bench.send(request)
        assert isinstance(answer, JobQuoted)
        return answer

    def test_quote_of_idle_zone_starts_next_round(self, bench):
        answer = self.ask(bench, work_s=600, workers=(2, 4))
        assert answer.reason == "plan_found"
        evidence = answer.evidence
        assert (evidence.start_s, evidence.earliest_end_s, evidence.latest_end_s) == (60.0, 210.0, 360.0)

    def test_quote_waits_for_running_and_shorter_jobs(self, bench):
        bench.send(submit("runs", 800, (8, 8)))
        run(bench, bench.send(tick(60.0)))
        bench.send(submit("shorter", 80, (8, 8)), submit("longer", 8_000, (8, 8)))
        evidence = self.ask(bench, work_s=800, workers=(8, 8)).evidence
        assert evidence.jobs_waiting == 2
        # The running job began at 60 s and takes 100 s. The shorter one starts in the round after that, and
        # takes 10 s: then it is the turn of the next round.
        assert evidence.start_s == 240.0

    def test_quote_counts_flexible_workers_as_free(self, bench):
        bench.send(submit("grows", 90_000, (1, 8)))
        run(bench, bench.send(tick(60.0)))
        assert self.ask(bench, work_s=60).evidence.start_s == 120.0
        bench.send(submit("j", 60))
        assert ("j", "started", 1) in resized(bench.send(tick(120.0)))

    def test_quote_skips_jobs_that_do_not_fit(self, bench):
        bench.send(submit("runs", 90_000, (5, 5)))
        run(bench, bench.send(tick(60.0)))
        bench.send(submit("wide", 80, (8, 8)))
        assert self.ask(bench, work_s=6_000).evidence.start_s == 120.0
        bench.send(submit("j", 6_000))
        assert resized(bench.send(tick(120.0))) == [("j", "started", 1)]

    def test_quote_counts_exclusively_usable_servers(self):
        bench = ElasticBench()
        slow = Node(id="slow", gpu_type="T4", tariff="flat")
        cell = elastic_cell(1)
        zone = cell.zones[0].model_copy(update={"nodes": (*cell.zones[0].nodes, slow)})
        bench.send(cell.model_copy(update={"zones": (zone,)}), tick(0.0), submit("runs", 800, (4, 4)))
        run(bench, bench.send(tick(60.0)))
        # The job ends at 260 s.
        assert self.ask(bench, work_s=100).evidence.start_s == 300.0
        assert self.ask(bench, work_s=100, fungible=True).evidence.start_s == 120.0

    def test_oversized_job_gets_reason(self, bench):
        assert self.ask(bench, workers=(9, 9)).reason == "larger_than_the_zone"


def test_restored_zone_requeues_jobs_in_same_order(bench):
    """Wider jobs are placed first, whenever they came."""
    bench.send(submit("narrow"), submit("wide", gpus_per_worker=2), tick(60.0))
    bench.twin = Cell.unpack(bench.cell.packed())
    lost = resized(bench.send(NodeSilent(cell=CELL, node="s0", silent_s=30.0)))
    assert lost == [("narrow", "node_lost", 0), ("wide", "node_lost", 0)]


def test_restored_zone_closes_nodes_in_same_order(bench):
    for _ in range(2):
        bench.send(NodeOffline(cell=CELL, node="s0"), NodeOffline(cell=CELL, node="s1"))
        bench.send(
            *(
                NodeOnline(cell=CELL, node=node, base_model="any", runners=("elastic",))
                for node in ("s0", "s1")
            )
        )
        bench.twin = Cell.unpack(bench.cell.packed())
        bench.send(NodeOffline(cell=CELL, node="s1"), NodeOffline(cell=CELL, node="s0"))
        assert bench.twin.packed() == bench.cell.packed()


def test_restored_zone_names_same_blocking_job():
    bench = ElasticBench()
    sizes = {"a": 2, "b": 3, "c": 2}
    bench.send(elastic_cell(2), tick(0.0))
    bench.send(*(submit(job_id, gpus_per_worker=size) for job_id, size in sizes.items()), withdraw("a"))
    bench.twin = Cell.unpack(bench.cell.packed())
    types = tuple(each.model_copy(update={"gpus": 1}) for each in GPU_TYPES)
    (refused,) = bench.send(
        ZoneConfigured(cell=CELL, zone=elastic_zone(2).model_copy(update={"gpu_types": types}))
    )
    assert isinstance(refused, EventIgnored)
    assert refused.facts["gpus_per_worker"] == 2
