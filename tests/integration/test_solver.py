"""The real solver with the real worker on real Kafka: killed at any point, each request is answered."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from infra.cli import run
from infra.deployment.deployment import Deployment as LocalDeployment
from infra.deployment.deployment import DeploymentSpec
from infra.deployment.deployment_folders import Folders
from infra.kafka.local import LocalKafka
from infra.log.target import Target
from schemas.auction.settings import TitanPolicy
from schemas.base import Event
from schemas.cells import CellConfigured
from schemas.codec import Decision, decode_decision, decode_event
from schemas.decisions import EventIgnored, JobAdmitted, JobRejected
from schemas.jobs import JobSubmitted
from schemas.kafka_connection import KafkaConnection
from schemas.service_base import EXIT_FAILED, EXIT_UNFIT
from schemas.solves import SolveFinished, SolveRequested
from tests.integration.deployment import DEMO_CELLS, Deployment, Worker, bids_file, demo_bid, until
from tests.support.cells import EPOCH_S, bid, configuration, tick, zone

CELL = "alpha"
LATE = 0.6
"""Some way into the last half of a slot."""
FOR_TWO = ("j1", "j2")
"""The highest of three bids for all of the fast nodes until the deadline, for which there is room."""


def titan_cell(cell: str) -> CellConfigured:
    return configuration(cell=cell, zones=(zone(policy=TitanPolicy(kind="titan")),))


def bids(slot: int) -> list[JobSubmitted]:
    """Three that each take a fast node for the two slots after `slot`, worth 5, 9 and 7 units."""
    whole = {
        "work_samples": 200,
        "speed_samples_per_s": {"fast": 10.0},
        "deadline_s": EPOCH_S + 10 * (slot + 3),
    }
    return [
        bid(f"j{3 * slot + number}", units, **whole).model_copy(update={"cell": CELL})
        for number, units in enumerate((5.0, 9.0, 7.0))
    ]


def at(slot: float) -> Event:
    return tick(slot).model_copy(update={"cell": CELL})


@pytest.fixture
def deployment(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(kafka, topic_prefix, tmp_path, [CELL], configuration=titan_cell)
    yield deployment
    deployment.stop_workers()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalKafka]:
    """One to kill."""
    with LocalKafka(tmp_path / "broker") as broker:
        yield broker


@pytest.fixture
def deployment_on_broker(broker: LocalKafka, topic_prefix: str, tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(
        broker.bootstrap_servers, topic_prefix, tmp_path, [CELL], configuration=titan_cell
    )
    yield deployment
    deployment.stop_workers()


def decisions(deployment: Deployment) -> list[Decision]:
    return [decode_decision(record.value or b"") for record in deployment.records("decisions")]


def outcomes(deployment: Deployment, kind: type) -> list:
    return [decision.outcome for decision in decisions(deployment) if isinstance(decision.outcome, kind)]


def answers(deployment: Deployment) -> list[tuple[str, SolveFinished]]:
    """Id and event of each."""
    envelopes = [decode_event(r.value, r.headers) for r in deployment.records("solves.finished")]
    return [(envelope.id, envelope.event) for envelope in envelopes]


def admitted(deployment: Deployment) -> list[str]:
    return [outcome.job_id for outcome in outcomes(deployment, JobAdmitted)]


def ask(deployment: Deployment, slot: int) -> None:
    """Send a slot's ticks and bids, and wait until the cell has asked for their solve."""
    deployment.send([at(slot)])
    until(lambda: str(EPOCH_S + slot * 10) in ledger_text(deployment), "the slot's tick in the ledger")
    deployment.send(bids(slot))
    until(lambda: f'"j{3 * slot + 2}"' in ledger_text(deployment), "the bids in the ledger")
    deployment.send([at(slot + LATE)])
    until(lambda: len(outcomes(deployment, SolveRequested)) == slot + 1, "a request")


def suspended(solver: Worker) -> psutil.Process:
    """The process that solves for it, once it is ready, stopped before its next request."""
    until(lambda: "solver ready" in solver.output, "a solver that is ready")
    (solving,) = [p for p in psutil.Process(solver.pid).children() if "spawn_main" in " ".join(p.cmdline())]
    solving.suspend()
    return solving


def caught_solving(deployment: Deployment, **settings: object) -> tuple[Worker, psutil.Process]:
    """A worker's first request, and the solver, with its suspended process, that has begun to answer it."""
    deployment.start_worker()
    deployment.configure(CELL)
    solver = deployment.start_solver(**settings)
    solving = suspended(solver)
    ask(deployment, 0)
    until(lambda: "solve begun cell=alpha zone=z request=batch-1" in solver.output, "a solve")
    return solver, solving


def ledger_text(deployment: Deployment) -> str:
    return "\n".join((record.value or b"").decode() for record in deployment.records("ledger"))


@pytest.mark.slow
def test_bids_of_slot_are_admitted_by_solver(deployment: Deployment) -> None:
    deployment.start_worker()
    solver = deployment.start_solver()
    deployment.configure(CELL)

    ask(deployment, 0)
    until(lambda: len(admitted(deployment)) == 2, "admitted bids")

    ((id, answer),) = answers(deployment)
    (request,) = [d for d in decisions(deployment) if isinstance(d.outcome, SolveRequested)]
    assert id == f"solved-{request.id}-{request.chain[:16]}"
    assert (answer.solution.status, answer.request_id, len(answer.solution.plans)) == (
        "optimal",
        "batch-1",
        2,
    )
    until(lambda: outcomes(deployment, JobRejected), "the bid without plan")
    assert tuple(admitted(deployment)) == FOR_TWO
    assert [outcome.job_id for outcome in outcomes(deployment, JobRejected)] == ["j0"]
    planned = {tuple(outcome.evidence.offer.plan.node_slots) for outcome in outcomes(deployment, JobAdmitted)}
    assert planned == {tuple((slot, node) for slot in (1, 2)) for node in ("a1", "a2")}
    assert deployment.proven().ok

    solver.send(signal.SIGTERM)
    assert solver.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGKILL, -signal.SIGKILL), pytest.param(signal.SIGTERM, 0, marks=pytest.mark.drill)],
    ids=["killed", "stopped"],
)
def test_solver_answers_after_restart(deployment: Deployment, number: signal.Signals, status: int) -> None:
    solver, solving = caught_solving(deployment)
    solver.send(number)
    assert solver.wait() == status
    if status:
        solving.resume()  # has not ended
    assert answers(deployment) == []
    assert outcomes(deployment, JobRejected) == []

    deployment.start_solver()
    until(lambda: outcomes(deployment, JobRejected), "the batch decided")
    until(lambda: not solving.is_running(), "the end of the first solver's process")

    assert len(answers(deployment)) == 1
    assert tuple(admitted(deployment)) == FOR_TWO
    assert deployment.proven().ok


@pytest.mark.drill
def test_another_solver_answers_for_killed_one(deployment: Deployment) -> None:
    deployment.start_worker()
    deployment.configure(CELL)
    solvers = [deployment.start_solver(session_timeout_s=6) for _ in range(2)]
    solving = {solver: suspended(solver) for solver in solvers}
    deployment.await_members(2, "solvers")
    ask(deployment, 0)
    (asked,) = until(
        lambda: [solver for solver in solvers if "solve begun" in solver.output], "a solve at one of them"
    )
    (other,) = set(solvers) - {asked}
    solving[other].resume()

    asked.kill()
    solving[asked].resume()  # so that it sees the end of its service
    until(lambda: outcomes(deployment, JobRejected), "the batch decided")
    until(lambda: not solving[asked].is_running(), "the end of the killed solver's process")

    assert "solve answered cell=alpha zone=z request=batch-1 found=batch" in other.output
    assert len(answers(deployment)) == 1
    assert tuple(admitted(deployment)) == FOR_TWO
    assert deployment.proven().ok


@pytest.mark.drill
def test_answer_waits_for_broker_killed_during_solve(
    broker: LocalKafka, deployment_on_broker: Deployment
) -> None:
    deployment = deployment_on_broker
    solver, solving = caught_solving(deployment)

    broker.kill()
    solving.resume()
    time.sleep(5.0)  # the answer has nowhere to go
    assert solver.running, solver.output
    assert "solve answered" not in solver.output
    broker.start()
    until(lambda: outcomes(deployment, JobRejected), "the batch decided")

    assert solver.running, solver.output
    assert len(answers(deployment)) == 1
    assert tuple(admitted(deployment)) == FOR_TWO
    assert deployment.proven().ok


@pytest.mark.drill
def test_solver_without_broker_answers_after_restart(
    broker: LocalKafka, deployment_on_broker: Deployment
) -> None:
    deployment = deployment_on_broker
    solver, solving = caught_solving(deployment, delivery_timeout_s=10, stop_timeout_s=2)

    broker.kill()
    solving.resume()
    assert solver.wait() == EXIT_FAILED
    assert "millrace solver: UnconfirmedAnswerError: " in solver.output
    broker.start()
    deployment.start_solver()
    until(lambda: outcomes(deployment, JobRejected), "the batch decided")

    assert len(answers(deployment)) == 1
    assert tuple(admitted(deployment)) == FOR_TWO
    assert deployment.proven().ok


@pytest.mark.drill
def test_a_solver_stops_in_time_without_a_broker(
    broker: LocalKafka, deployment_on_broker: Deployment
) -> None:
    solver = deployment_on_broker.start_solver(stop_timeout_s=2)
    until(lambda: "solver ready" in solver.output, "a solver that is ready")
    broker.kill()

    solver.send(signal.SIGTERM)

    assert solver.wait(20) == 0


@pytest.mark.drill
def test_duplicate_answer_counts_once(deployment: Deployment) -> None:
    deployment.start_worker()
    first = deployment.start_solver()
    deployment.configure(CELL)
    ask(deployment, 0)
    until(lambda: outcomes(deployment, JobRejected), "the batch decided")
    first.send(signal.SIGTERM)
    assert first.wait() == 0
    # As if it had been killed before its offset was committed.
    deployment.rewind("solvers", "solves.requested")

    deployment.start_solver()
    until(lambda: outcomes(deployment, EventIgnored), "the answer taken note of")

    (again, *_), ((ids, _), (ids_again, _)) = outcomes(deployment, EventIgnored), answers(deployment)
    assert (again.reason, ids) == ("duplicate_event", ids_again)
    assert tuple(admitted(deployment)) == FOR_TWO
    ask(deployment, 1)
    until(lambda: len(answers(deployment)) == 3, "an answer to the second request")
    until(lambda: len(outcomes(deployment, JobAdmitted) + outcomes(deployment, JobRejected)) == 6, "all bids")
    assert deployment.proven().ok


@pytest.mark.drill
def test_old_request_is_answered_without_solve(deployment: Deployment) -> None:
    deployment.start_worker()
    deployment.configure(CELL)
    ask(deployment, 0)

    deployment.start_solver(max_request_age_s=0.01)
    until(lambda: len(outcomes(deployment, JobRejected)) == 3, "the batch decided")

    ((_, answer),) = answers(deployment)
    assert answer.solution is None
    assert {outcome.reason for outcome in outcomes(deployment, JobRejected)} == {"solver_found_nothing"}


@pytest.mark.drill
def test_record_without_problem_is_skipped_with_log_line(deployment: Deployment) -> None:
    deployment.send_raw("solves.requested", b"\xff", [], CELL.encode())
    deployment.start_worker()
    solver = deployment.start_solver()
    deployment.configure(CELL)
    deployment.send([at(0), *bids(0)])
    until(lambda: '"j2"' in ledger_text(deployment), "the bids in the ledger")
    deployment.send([at(LATE)])

    until(lambda: answers(deployment), "an answer")

    assert "not a decision and a problem in canonical form" in solver.output
    assert solver.running


def test_a_solver_without_topics_ends_with_one_line(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    deployment = Deployment(kafka, topic_prefix, tmp_path, [CELL])
    deployment.prefix = "absent"
    solver = deployment.start_solver()
    assert solver.wait() == EXIT_UNFIT
    assert solver.output == (
        "millrace solver: topics are missing, create them first: "
        "absent.solves.finished, absent.solves.requested\n"
    )


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_deployment_of_titan_zone_has_solver(
    kafka: str, topic_prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    described = yaml.safe_load(DEMO_CELLS.read_text())
    described["cells"][0]["zones"][0]["policy"] = {"kind": "titan"}
    file = tmp_path / "cells.yaml"
    file.write_text(yaml.safe_dump(described))
    bids = bids_file(tmp_path / "bids.yaml", demo_bid("rich", 3))
    folders = Folders(tmp_path / "deployment")
    folders.create()
    said: list[str] = []
    layout = DeploymentSpec(
        file, folders, Target(KafkaConnection(bootstrap_servers=kafka), topic_prefix), run_executors=False
    )
    with LocalDeployment(layout, said.append).running():
        log = folders.logs / "solver.log"
        until(lambda: "solver ready" in log.read_text(), "a solver that is ready")
        where = ["--bootstrap-servers", kafka, "--topic-prefix", topic_prefix]
        status = run(["submit", bids, "--json", *where])
    output = capsys.readouterr()
    assert (status, output.err) == (0, "")
    (decided,) = map(json.loads, output.out.splitlines())
    assert "solver starts" in said
    assert decided["state"] == "admitted"
