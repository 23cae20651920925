"""Real executors on a real broker, and the messages of the cell to them."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeVar

from confluent_kafka import Consumer, Producer, TopicPartition

from executors.node import ExecutorSettings, main
from executors.node.journal import Journal
from schemas.codec import Decision, Envelope, decode_event
from schemas.commands import Command
from schemas.fleet import FleetEvent
from schemas.kafka_connection import KafkaConnection
from schemas.lora_commands import RunOrder
from schemas.topics import COMMANDS, FLEET, topic_name
from streams.kafka.configuration import producer, reader
from tests.support.executors import BASE_MODEL, CELL, CHAIN, assignment

# Torch and transformers take each process ten seconds of a core or more: the executors are forked from one
# process that has imported them, and has done nothing else.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["executors.lora.slots.runner", "executors.node"])

TIMEOUT_S = 60.0

T = TypeVar("T")


class Executors:
    """Processes that share a store under `root`, and the topics of their commands and reports."""

    def __init__(
        self,
        nodes: KafkaConnection,
        topic_prefix: str,
        root: Path,
        base_model_dir: Path,
        others: KafkaConnection | None = None,
        runners: tuple[str, ...] = ("lora",),
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`nodes` is the connection of the executors, and `others` that of the tests, if it differs. Runners
        that are not the product's own are below `root`. `timeout_s` is the longest wait for an event."""
        self.root = root
        self._timeout_s = timeout_s
        self.slot = 0
        self.events: list[Envelope] = []
        self.processes: dict[str, BaseProcess] = {}
        self._sent = 0
        self._commands_topic = topic_name(topic_prefix, COMMANDS)
        self._settings = ExecutorSettings(
            **nodes.as_fields(),
            topic_prefix=topic_prefix,
            cell=CELL,
            node="any",
            runners=runners,
            base_model=BASE_MODEL,
            output_root=root / "adapters",
            state_root=root / "state",
            node_heartbeat_s=0.2,
        )
        self._of_lora = {
            "MILLRACE_BASE_MODEL_DIR": str(base_model_dir),
            "MILLRACE_DATASET_ROOT": str(root / "datasets"),
            "MILLRACE_PROGRESS_S": "0.1",
            "MILLRACE_CHECKPOINT_STEPS": "20",
        }
        settings = producer(others or nodes, "tests", delivery_timeout_s=TIMEOUT_S, linger_ms=0)
        self._producer = Producer({**settings, "log_level": 0})
        self._consumer = Consumer(reader(others or nodes, "tests"))
        self._consumer.assign([TopicPartition(topic_name(topic_prefix, FLEET), 0, 0)])

    # Processes

    def start(self, node: str) -> None:
        settings = self._settings.model_copy(update={"node": node})
        arguments = (settings, self._of_lora, self._log_path(node), self.root)
        self.processes[node] = _CONTEXT.Process(target=_serve, args=arguments)
        self.processes[node].start()

    def stop(self, node: str, number: signal.Signals) -> int | None:
        """Send a signal and return the exit status; None if the process goes on regardless."""
        process = self.processes.pop(node)
        os.kill(process.pid, number)
        process.join(TIMEOUT_S)
        return process.exitcode

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.join(TIMEOUT_S)
        self._consumer.close()

    def log(self, node: str) -> str:
        return self._log_path(node).read_text()

    def journal(self, node: str) -> Journal:
        path = self.root / "state" / CELL / "nodes" / node / "journal.json"
        return Journal.model_validate_json(path.read_bytes())

    def over(self, node: str) -> list[str]:
        """The jobs whose part of the present slot is over and reported."""
        return self.journal(node).runners["lora"]["over"]

    def checkpoints(self, job_id: str) -> set[tuple[int, int]]:
        """Slot and samples of each checkpoint that was published."""
        folders = (self.root / "state" / CELL / "checkpoints" / job_id).glob("[0-9]*-[0-9]*")
        return {(int(slot), int(samples)) for slot, samples in (path.name.split("-") for path in folders)}

    # Commands

    def assign(self, node: str, *runs: RunOrder, length_s: float = 300.0) -> Decision:
        """Begin the next slot on a node, now.

        No cell has slots at any time: each is of its own calendar, which a node accepts once a second
        slot agrees with it. The first of the two trains nothing.
        """
        self.slot += 1
        now_s = time.time()
        self.command(
            assignment(node=node, slot=self.slot - 1, start_s=now_s - length_s + 1, length_s=length_s)
        )
        return self.command(assignment(*runs, node=node, slot=self.slot, start_s=now_s, length_s=length_s))

    def command(self, command: Command) -> Decision:
        self._sent += 1
        decision = Decision(f"{CELL}-{self._sent}-0", CELL, "e", time.time(), command, CHAIN)
        self.send(command.node, decision.canonical)
        return decision

    def send(self, node: str, value: bytes) -> None:
        self._producer.produce(self._commands_topic, value, node.encode())
        assert self._producer.flush(TIMEOUT_S) == 0

    def _log_path(self, node: str) -> Path:
        return self.root / f"{node}.log"

    # Reports

    def events_of(self, kind: type[FleetEvent], **fields: object) -> list[FleetEvent]:
        """Return the events so far of one kind, with these fields."""
        events = [envelope.event for envelope in self.events if isinstance(envelope.event, kind)]
        return [
            event for event in events if all(getattr(event, name) == value for name, value in fields.items())
        ]

    def await_event(self, kind: type[FleetEvent], **fields: object) -> FleetEvent:
        """Return the newest event of one kind with these fields, once there is one."""
        return self.await_that(lambda: self.events_of(kind, **fields))[-1]

    def await_that(self, condition: Callable[[], T]) -> T:
        """Listen until the condition holds, and return its value."""
        deadline_s = time.monotonic() + self._timeout_s
        while not (value := condition()):
            died = [node for node, process in self.processes.items() if not process.is_alive()]
            assert not died, self.log(died[0])
            assert time.monotonic() < deadline_s, [envelope.event for envelope in self.events[-20:]]
            self.listen(0.05)
        return value

    def listen(self, wait_s: float) -> None:
        """Read what has been reported, until nothing comes for a while."""
        message = self._consumer.poll(wait_s)
        while message is not None:
            if message.error() is None:
                self.events.append(decode_event(message.value(), message.headers()))
            message = self._consumer.poll(0)


def _serve(settings: ExecutorSettings, of_lora: dict[str, str], log_path: Path, site: Path) -> None:
    os.environ.update(of_lora)
    sys.path.append(str(site))
    with log_path.open("ab") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    main(settings)


@contextmanager
def executors(
    nodes: KafkaConnection,
    topic_prefix: str,
    root: Path,
    base_model_dir: Path,
    others: KafkaConnection | None = None,
    runners: tuple[str, ...] = ("lora",),
    timeout_s: float = TIMEOUT_S,
) -> Iterator[Executors]:
    """Yield executors that end with the block, in any state."""
    fleet = Executors(nodes, topic_prefix, root, base_model_dir, others, runners, timeout_s)
    try:
        yield fleet
    finally:
        fleet.close()
