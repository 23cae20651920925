"""Random histories of an experts zone: whatever happens, what must hold holds, and every job ends.

After every event the zone's invariants are checked, what it is counted for, and that a cell that was restored
from a snapshot decides the same.
"""

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.base import Event, Outcome
from schemas.changes import NodeCordoned, NodeRegistered, NodeRetired, NodeUncordoned, ZoneConfigured
from schemas.decisions import JobCompleted, JobRefunded, JobRejected, JobWithdrawn
from schemas.experts.commands import RanksAssigned
from schemas.experts.outcomes import PlacementDecided, RanksChanged
from schemas.fleet import CommandRefused, NodeSilent, RefusedRun, RunReport
from schemas.inference import CapacityOffered, CapacityReclaimed, InferenceLoadReported
from tests.support.examples import examples
from tests.support.moe import (
    CELL,
    GPU,
    INTERVAL_S,
    LENDER,
    MoeBench,
    ObedientNodes,
    failed,
    moe_cell,
    online,
    profiled,
    progressed,
    routed,
    serving,
    submit,
    tick,
    training,
    withdraw,
)
from tests.support.twins import ZONE

STEPS = 80
KNOWN = (6, 13, 14, 18, 26, 32, 33, 58)
"""Seeds of histories in which placements change and jobs give way."""
USERS = ("ann", "ben", "cid")
PATIENCES_S = (5.0, 3_600.0)
LENDABLE = 3
EXPERTS, LAYERS = 8, 2
TROUBLES = (
    *("lose", "restart", "fail", "refuse", "stop", "withdraw", "forge", "retire", "register", "cordon"),
    *("return", "return", "return", "return", "uncordon", "uncordon"),
)
ENDS = (JobCompleted, JobRefunded, JobRejected, JobWithdrawn)


class History:
    """One history, and what it takes to go on with it."""

    def __init__(self, rng: random.Random, patience_s: float) -> None:
        self.rng = rng
        self.bench = MoeBench()
        self.nodes = ObedientNodes()
        self.down: set[str] = set()
        self.time_s = 0.0
        self.jobs = 0
        self.ended: list[str] = []
        self.assigned: list[RanksAssigned] = []
        self.placements: Counter[str] = Counter()
        """By reason."""
        self.gave_way = 0
        self.profiled: set[tuple[str, int]] = set()
        """Jobs and their generations."""
        self.favourite = 0
        """The expert that most tokens are routed to."""
        self.policy = {"lasting_reports": rng.choice([1, 2, 3]), "cool_down_s": rng.choice([0.0, 30.0])}
        self.policy["patience_s"] = patience_s
        self.send(moe_cell(rng.randint(2, 4), LENDABLE, **self.policy), tick(0.0))
        self.send(InferenceLoadReported(cell=CELL, zone=LENDER, time_s=0.0, load=0.0))

    @property
    def live(self) -> list[str]:
        return list(self.bench.cell.jobs.live)

    @property
    def own(self) -> list[str]:
        """The nodes of the zone."""
        layout = self.bench.cell.nodes.layout
        return [node for node, zone in layout.zone_of.items() if zone == ZONE]

    def send(self, *events: Event) -> None:
        for event in events:
            outcomes = self.bench.send(event)
            self.note(outcomes)
            self.nodes.obey(outcomes)

    def note(self, outcomes: list[Outcome]) -> None:
        self.ended += [outcome.job_id for outcome in outcomes if isinstance(outcome, ENDS)]
        self.assigned += [outcome for outcome in outcomes if isinstance(outcome, RanksAssigned)]
        self.gave_way += sum(isinstance(o, RanksChanged) and o.reason == "gave_way" for o in outcomes)
        self.placements.update(o.reason for o in outcomes if isinstance(o, PlacementDecided))

    def tick(self, step_s: float) -> None:
        self.time_s += step_s
        self.send(tick(self.time_s))

    def step(self) -> None:
        rng = self.rng
        happens = ["job", "tick", "tick", *3 * ["report"], *6 * ["route"], "end", "trouble", "loan", "ask"]
        match rng.choice(happens):
            case "job":
                self.submit()
            case "tick":
                self.tick(rng.choice([1.0, INTERVAL_S, 3 * INTERVAL_S]))
            case "report" if self.nodes.due:
                self.send(self.nodes.next_report(rng.choice(sorted(self.nodes.due))))
            case "route" if self.nodes.leading:
                command = self.nodes.leading[rng.choice(sorted(self.nodes.leading))]
                for _ in range(rng.randint(1, 5)):
                    self.route(command)
            case "end" if self.nodes.leading and rng.random() < 0.3:
                self.nodes.end(rng.choice(sorted(self.nodes.leading)))
            case "trouble":
                self.trouble()
            case "loan":
                self.loan()
            case "ask":
                self.policy["lasting_reports"] = rng.choice([1, 2, 3])
                (zone, _) = self.bench.cell.configuration.zones
                policy = zone.policy.model_copy(update=self.policy)
                self.send(ZoneConfigured(cell=CELL, zone=zone.model_copy(update={"policy": policy})))

    def submit(self) -> None:
        rng = self.rng
        self.jobs += 1
        ranks = rng.choice([1, 2, 2, 3, 4, 6])
        requests, until_s = rng.choice(
            [(1_000, None), (None, self.time_s + 200.0), (500, self.time_s + 90.0)]
        )
        workload = rng.choice(
            [
                training(ranks),
                serving(
                    ranks, requests, until_s, most_experts_per_device=8, profile_batches=rng.choice([0, 9])
                ),
            ]
        )
        self.send(submit(f"j{self.jobs}", workload, rng.choice(USERS)))

    def route(self, command: RanksAssigned) -> None:
        """Report a leader's routed tokens, which may prefer another expert than before."""
        if self.rng.random() < 0.2:
            self.favourite = self.rng.randrange(EXPERTS)
        tokens = [[100 + 10 * layer] * EXPERTS for layer in range(LAYERS)]
        tokens[self.favourite % LAYERS][self.favourite] = self.rng.choice([3_000, 10_000])
        key = command.job_id, command.generation
        if command.workload.kind == "moe-serve" and key not in self.profiled and self.rng.random() < 0.8:
            self.profiled.add(key)
            self.send(profiled(command, *tokens))
        else:
            revision = self.nodes.revisions[command.job_id]
            done = min(command.resume_samples + self.rng.randrange(500), 10**12)
            self.send(routed(command, *tokens, revision=revision, samples_done=done))

    def loan(self) -> None:
        """Send an event of the inference side; the cell decides whether it is consistent."""
        rng = self.rng
        number = len(self.bench.ledger)
        of_lender = {"cell": CELL, "zone": LENDER}
        match rng.choice(["load", "offer", "offer", "reclaim"]):
            case "load":
                load = rng.choice([0.0, 0.2, 0.5, 1.0])
                self.send(InferenceLoadReported(**of_lender, time_s=self.time_s, load=load))
            case "offer":
                servers = rng.sample([f"i{index}" for index in range(LENDABLE)], rng.randint(1, LENDABLE))
                self.send(CapacityOffered(**of_lender, offer_id=f"o{number}", servers=tuple(servers)))
            case "reclaim":
                due_s = self.time_s + 120.0
                self.send(CapacityReclaimed(**of_lender, reclaim_id=f"r{number}", servers=1, due_s=due_s))

    def trouble(self) -> None:
        rng, nodes = self.rng, self.nodes
        kind = rng.choice(TROUBLES)
        node = rng.choice(self.own)
        command = nodes.leading[rng.choice(sorted(nodes.leading))] if nodes.leading else None
        if kind == "lose" and node not in self.down:
            self.down.add(node)
            nodes.lose(node)
            self.send(NodeSilent(cell=CELL, node=node, silent_s=60.0))
        elif kind == "return" and self.down:
            self.come_back(rng.choice(sorted(self.down)))
        elif kind == "restart" and node not in self.down:
            nodes.lose(node)
            self.send(online(node))
        elif kind == "fail" and command is not None:
            del nodes.leading[command.job_id]
            self.send(failed(command, permanent=rng.random() < 0.3))
        elif kind == "refuse" and command is not None:
            del nodes.leading[command.job_id]
            self.send(_refused(command.model_copy(update={"node": rng.choice(command.members).node})))
        elif kind == "stop" and command is not None:
            del nodes.leading[command.job_id]
            self.send(progressed(command, rng.randrange(1_000), complete=True))
        elif kind == "forge":
            self.forge()
        elif kind == "withdraw" and self.live:
            job_id = rng.choice(self.live)
            self.send(withdraw(job_id, self.bench.cell.jobs.live[job_id].user))
        elif kind == "retire":
            self.send(NodeRetired(cell=CELL, node=node))
        elif kind == "register":
            name = f"x{len(self.bench.ledger)}"
            self.send(NodeRegistered(cell=CELL, node=name, zone=ZONE, gpu_type=GPU.name, tariff="flat"))
            self.come_back(name)
        elif kind == "cordon":
            self.send(NodeCordoned(cell=CELL, node=node))
        elif kind == "uncordon":
            self.send(NodeUncordoned(cell=CELL, node=node))

    def forge(self) -> None:
        """A report of a run that is over, or from elsewhere."""
        reports = [entry.envelope.event for entry in self.bench.ledger]
        old = [report for report in reports if isinstance(report, RunReport)]
        if old:
            report = self.rng.choice(old)
            job = self.bench.described["jobs"].get(report.job_id)
            if job is None or report.run_id != job["run_id"]:
                self.send(report.model_copy(update={"node": self.rng.choice(self.own)}))

    def come_back(self, node: str) -> None:
        self.down.discard(node)
        if node in self.own:
            self.send(online(node))

    def come_to_rest(self) -> None:
        """Everything that can help helps, for as long as it takes."""
        for node in self.own:
            if node in self.down:
                self.come_back(node)
            self.send(NodeUncordoned(cell=CELL, node=node))
        for _ in range(40 + 10 * len(self.live)):
            while self.nodes.due:
                self.send(self.nodes.next_report(min(self.nodes.due)))
            for job_id in sorted(self.nodes.leading):
                self.nodes.end(job_id)
            if not self.live:
                return
            self.tick(INTERVAL_S)


def _refused(command: RanksAssigned) -> CommandRefused:
    return CommandRefused(
        cell=CELL,
        node=command.node,
        command_id="c-1-0",
        runner="moe",
        reason="impossible",
        detail="",
        runs=(RefusedRun(run_id=command.run_id, job_id=command.job_id),),
    )


def check(seed: int) -> History:
    history = History(random.Random(seed), PATIENCES_S[seed % len(PATIENCES_S)])
    for _ in range(STEPS):
        history.step()
    history.come_to_rest()
    check_end(history)
    return history


def check_end(history: History) -> None:
    """Every job has ended once, nothing is left of any, and generations have only risen."""
    assert history.live == []
    assert sorted(history.ended) == sorted(f"j{number + 1}" for number in range(history.jobs))
    described = history.bench.described
    assert not any(node["held"] for node in described["nodes"].values())
    assert not history.bench.cell.live_jobs_bytes
    assert described["turns"] == {}
    assert history.bench.zone.free_to_leave(history.own) == history.own
    generations: dict[str, int] = {}
    for command in history.assigned:
        assert command.generation in (generations.get(command.job_id, 0) + i for i in (0, 1))
        generations[command.job_id] = command.generation


def test_jobs_of_histories_end_with_placements_and_preemptions() -> None:
    histories = [check(seed) for seed in KNOWN]
    placements = sum((history.placements for history in histories), Counter[str]())
    assert min(placements[reason] for reason in ("initial", "popularity_shifted", "devices_changed")) >= 3
    assert placements["popularity_shifted"] >= 20
    assert sum(history.gave_way for history in histories) >= 10


@settings(deadline=None, max_examples=examples(30))
@given(st.integers(0, 2**32))
def test_every_job_of_any_history_ends(seed: int) -> None:
    check(seed)
