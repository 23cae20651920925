"""Executors as their users have them: processes on a broker, commands in, reports and adapters out."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Lfm2ForCausalLM

from executors.lora.base_model import load_base
from executors.lora.dataset import DatasetRoot
from executors.lora.default_base import default_base_directory
from executors.lora.engine import FusedEngine
from executors.lora.shared_base import SharedBase
from executors.lora.slots.runs import task_of
from executors.lora.task_files import ADAPTER_TENSORS, encode_state
from infra.kafka.local import LocalKafka
from infra.topics import apply_grants, ensure_topics, grants
from schemas.fleet import (
    CommandRefused,
    NodeHeartbeat,
    NodeOffline,
    NodeOnline,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunStarted,
)
from schemas.kafka_connection import KafkaConnection
from schemas.lora_commands import RunCancelled, RunOrder
from schemas.service_base import EXIT_UNFIT
from schemas.topics import topics
from tests.support.base_models.small import small_model
from tests.support.base_models.survey import small_tokenizer
from tests.support.executor_processes import Executors, executors
from tests.support.executors import CELL, TINY_RECIPE, assignment, order, write_dataset

REPOSITORY = Path(__file__).parents[2]

LONG = 1_200
"""Samples that take seconds."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> SharedBase:
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLRACE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        return load_base(default_base_directory(TINY_RECIPE))


@pytest.fixture(scope="module")
def fleet(kafka: str, base: SharedBase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executors]:
    """Two executors; they start while the first test waits for them."""
    root = tmp_path_factory.mktemp("executors")
    (root / "datasets").mkdir()
    write_dataset(root / "datasets" / "pairs.jsonl")
    prefix = f"test-{uuid.uuid4().hex[:12]}"
    connection = KafkaConnection(bootstrap_servers=kafka)
    ensure_topics(connection, topics(prefix, partitions=1, command_partitions=2))
    with executors(connection, prefix, root, base.directory) as fleet:
        fleet.start("n1")
        fleet.start("n2")
        yield fleet


def undisturbed(fleet: Executors, base: SharedBase, job: RunOrder) -> tuple[dict[str, torch.Tensor], float]:
    """The adapter and the last loss of a job that is trained alone and at one go."""
    engine = FusedEngine(base, DatasetRoot(fleet.root / "datasets"))
    engine.attach(task_of(job))
    loss = float("nan")
    while engine.samples_done(job.job_id) < job.work_samples:
        loss = engine.step()[job.job_id]
    path = fleet.root / f"{job.job_id}.safetensors"
    path.write_bytes(encode_state(engine.detach(job.job_id), base)[ADAPTER_TENSORS])
    return load_file(path), loss


def assert_as_undisturbed(fleet: Executors, base: SharedBase, job: RunOrder, finished: RunFinished) -> None:
    expected, loss = undisturbed(fleet, base, job)
    adapter = load_file(fleet.root / "adapters" / finished.adapter_path / ADAPTER_TENSORS)
    assert finished.samples_done == job.work_samples
    assert finished.loss == pytest.approx(loss, rel=1e-3)
    torch.testing.assert_close(adapter, expected, rtol=1e-3, atol=1e-4)


def test_jobs_share_slot_after_invalid_record(fleet: Executors, base: SharedBase) -> None:
    fleet.send("n1", b"\x00 no command at all")
    first, second = order("first", 40, work=30), order("second", 40, seed=1)
    unfit = order("unfit", 40, dataset="none.jsonl")
    decision = fleet.assign("n1", first, unfit, second)
    fleet.send("n1", decision.canonical)
    finished = fleet.await_event(RunFinished, job_id="first")
    assert fleet.await_event(RunProgressed, job_id="second", complete=True).samples_done == 40
    assert fleet.await_event(RunFailed, job_id="unfit").permanent

    adapter = fleet.root / "adapters" / finished.adapter_path
    tensors = (adapter / ADAPTER_TENSORS).read_bytes()
    assert finished.adapter_digest == blake2b(tensors, digest_size=32).hexdigest()
    plain = AutoModelForCausalLM.from_pretrained(base.directory)
    prompt = torch.tensor([[5, 6, 7, 8]])
    before = plain(prompt).logits
    assert not torch.allclose(PeftModel.from_pretrained(plain, adapter)(prompt).logits, before, atol=1e-2)
    assert_as_undisturbed(fleet, base, first, finished)

    fleet.await_that(lambda: fleet.journal("n1").next_offset >= 3)
    fleet.listen(0.5)
    started = [run.run_id for run in fleet.events_of(RunStarted, node="n1")]
    assert sorted(started) == [f"{decision.outcome.slot}/{job_id}" for job_id in ("first", "second")]
    assert "command unreadable" in fleet.log("n1")
    assert f"command skipped id={decision.id}" in fleet.log("n1")
    assert fleet.over("n1") == ["first", "second", "unfit"]


@pytest.mark.drill
def test_node_trains_on_secured_broker(
    secured: LocalKafka, topic_prefix: str, base: SharedBase, tmp_path: Path
) -> None:
    (tmp_path / "datasets").mkdir()
    write_dataset(tmp_path / "datasets" / "pairs.jsonl")
    admin = secured.connection("admin")
    ensure_topics(admin, topics(topic_prefix, partitions=1, command_partitions=1))
    apply_grants(admin, grants(topic_prefix))
    nodes = secured.connection("nodes")
    with executors(nodes, topic_prefix, tmp_path, base.directory, others=admin) as fleet:
        fleet.start("n1")
        fleet.await_event(NodeOnline, node="n1")
        job = order("only", 40, work=30)
        fleet.assign("n1", job)
        finished = fleet.await_event(RunFinished, job_id="only")
        assert_as_undisturbed(fleet, base, job, finished)
        assert fleet.stop("n1", signal.SIGTERM) == 0
        assert "topic unread" not in fleet.log("n1")


def test_event_ids_are_unique_and_nodes_send_heartbeats(fleet: Executors) -> None:
    for node in ("n1", "n2"):
        online = fleet.await_event(NodeOnline, node=node)
        assert (online.base_model, online.runners) == ("tiny", ("lora",))
        fleet.await_event(NodeHeartbeat, node=node)
    for node in ("n1", "n2"):
        mine = [envelope for envelope in fleet.events if envelope.event.node == node]
        assert [envelope.id for envelope in mine] == [
            f"{node}-{fleet.journal(node).boot}-{sequence + 1}" for sequence in range(len(mine))
        ]


def test_a_job_moves_between_executors(fleet: Executors, base: SharedBase) -> None:
    job = order("mover", 200, work=300, dropout=0.1)
    fleet.assign("n1", job)
    # Sent at once, and so before the first one ends: the checkpoint is waited for.
    fleet.assign("n2", job.model_copy(update={"resume_samples": 200}))
    finished = fleet.await_event(RunFinished, job_id="mover")
    assert [(run.node, run.samples_done) for run in fleet.events_of(RunStarted, job_id="mover")] == [
        ("n1", 0),
        ("n2", 200),
    ]
    assert finished.node == "n2"
    assert_as_undisturbed(fleet, base, job, finished)


def test_forged_endless_slot_does_not_block_node(fleet: Executors) -> None:
    forged = assignment(order("forged", 8), node="n2", slot=10**12, start_s=time.time(), length_s=1e300)
    refused = fleet.command(forged)
    fleet.assign("n2", order("heard", 8))
    fleet.await_event(RunProgressed, job_id="heard", complete=True)
    assert f"command refused id={refused.id}" in fleet.log("n2")
    assert fleet.events_of(RunStarted, job_id="forged") == []
    (told,) = fleet.events_of(CommandRefused, command_id=refused.id)
    assert (told.node, told.runner, told.reason) == ("n2", "lora", "impossible")
    assert told.detail == "a slot of 1e+300 s: a cell has slots of 0.01 to 86400 s"


def test_newer_slot_ends_older_and_cancelled_job_stops(fleet: Executors) -> None:
    fleet.assign("n2", order("ousted", 10**6, work=10**6), order("kept", 10**6, work=10**6, seed=1))
    older = fleet.slot
    fleet.await_event(RunProgressed, job_id="ousted")
    fleet.command(RunCancelled(zone="z", node="n2", job_id="ousted"))
    fleet.await_that(lambda: fleet.over("n2") == ["ousted"])
    fleet.assign("n2")
    fleet.await_event(RunProgressed, run_id=f"{older}/kept", complete=True)
    assert fleet.events_of(RunProgressed, job_id="ousted", complete=True) == []


@pytest.mark.slow
def test_killed_executor_resumes_slot_from_checkpoint(fleet: Executors, base: SharedBase) -> None:
    job = order("survivor", LONG, work=LONG, dropout=0.1)
    fleet.assign("n1", order("done", 8), job)
    fleet.await_that(
        lambda: [run for run in fleet.events_of(RunProgressed, job_id="survivor") if run.samples_done > 200]
    )
    fleet.stop("n1", signal.SIGKILL)
    saved = max(samples for _, samples in fleet.checkpoints("survivor"))
    assert 0 < saved < LONG
    fleet.start("n1")
    finished = fleet.await_event(RunFinished, job_id="survivor")
    assert [run.samples_done for run in fleet.events_of(RunStarted, job_id="survivor")] == [0, saved]
    assert len(fleet.events_of(RunStarted, job_id="done")) == 1
    assert_as_undisturbed(fleet, base, job, finished)


def test_a_terminated_executor_leaves_in_good_order(fleet: Executors) -> None:
    fleet.assign("n2", order("parked", 10**6, work=10**6))
    fleet.await_event(RunProgressed, job_id="parked")
    began_s = time.monotonic()
    assert fleet.stop("n2", signal.SIGTERM) == 0
    assert time.monotonic() - began_s < 5
    fleet.await_event(NodeOffline, node="n2")
    fleet.listen(0.5)
    mine = [envelope.event for envelope in fleet.events if envelope.event.node == "n2"]
    assert isinstance(mine[-1], NodeOffline)
    (complete,) = fleet.events_of(RunProgressed, job_id="parked", complete=True)
    assert (fleet.slot, complete.samples_done) in fleet.checkpoints("parked")
    assert fleet.over("n2") == ["parked"]


def test_an_executor_can_be_terminated_while_it_loads(fleet: Executors) -> None:
    fleet.start("n3")
    fleet.await_event(NodeOnline, node="n3")
    assert fleet.stop("n3", signal.SIGTERM) == 0
    fleet.await_event(NodeOffline, node="n3")


def run_from_shell(tmp_path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "executors.node", *arguments],
        cwd=REPOSITORY,
        env={"PATH": os.environ["PATH"], "MILLRACE_DATASET_ROOT": str(tmp_path), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_base_with_leaking_sequences_ends_executor(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    (tmp_path / "datasets").mkdir()
    directory = tmp_path / "lfm2"
    small_model("lfm2", Lfm2ForCausalLM, seed=1).save_pretrained(directory)
    small_tokenizer().save_pretrained(directory)
    connection = KafkaConnection(bootstrap_servers=kafka)
    ensure_topics(connection, topics(topic_prefix, partitions=1, command_partitions=1))
    with executors(connection, topic_prefix, tmp_path, directory) as fleet:
        fleet.start("n1")
        process = fleet.processes.pop("n1")
        process.join(60)
        assert process.exitcode == EXIT_UNFIT
        assert f"{directory}: Lfm2ForCausalLM cannot be trained in packed batches" in fleet.log("n1")
        assert "move by" in fleet.log("n1")
        assert "(leaks)" in fleet.log("n1")
        fleet.await_event(NodeOffline, node="n1")
        assert fleet.events_of(NodeOnline) == []


def test_unstartable_executor_has_reason(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    fields = {
        "MILLRACE_CELL": CELL,
        "MILLRACE_BOOTSTRAP_SERVERS": kafka,
        "MILLRACE_TOPIC_PREFIX": topic_prefix,
        "MILLRACE_OUTPUT_ROOT": str(tmp_path / "adapters"),
        "MILLRACE_STATE_ROOT": str(tmp_path / "state"),
    }
    no_node = run_from_shell(tmp_path, **fields)
    assert (no_node.returncode, no_node.stderr) == (
        EXIT_UNFIT,
        "millrace executor: settings: MILLRACE_NODE: Field required\n",
    )
    no_topics = run_from_shell(tmp_path, "--node", "n1", **fields)
    assert no_topics.returncode == EXIT_UNFIT
    assert "create them first" in no_topics.stderr
    no_model = run_from_shell(tmp_path, "--node", "n1", **fields, MILLRACE_BASE_MODEL_DIR=str(tmp_path))
    assert no_model.returncode == EXIT_UNFIT
    assert "no Hugging Face model directory" in no_model.stderr
