"""The reference of the Kafka part: a Faust application that writes to a table and sends once per event.

It has one agent, one table and one output topic, with Faust's own defaults and no serialisation: the cost of
the framework itself on this machine. `python -m bench.spine.faust_alone` runs it until it is killed.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import faust
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from schemas.interpreters import python_command
from schemas.kafka_connection import KafkaConnection
from streams.kafka.administration import Administration
from streams.kafka.configuration import producer, reader

_APP = "bench-faust"
INPUT = f"{_APP}.events"
OUTPUT = f"{_APP}.answers"
_CHANGELOG = f"{_APP}-seen-changelog"
_DELIVERY_TIMEOUT_S = 300.0
_KEY = b"bench"
_ID = "id"
_PER_S = 100
_TIMEOUT_S = 30.0
_SERVERS, _FOLDER, _ANSWER_BYTES = (f"MILLRACE_BENCH_FAUST_{name}" for name in ("SERVERS", "FOLDER", "BYTES"))


def paced_latencies_ms(
    send: Callable[[], str], poll: Callable[[float], Mapping[str, float]], events: int
) -> list[float]:
    """Send 100 events per second and measure the time of each until its answer is read.

    Args:
        send: sends an event and returns its id.
        poll: waits for at most the given seconds and returns the arrival (monotonic seconds) of answers, by
            id.

    Raises:
        TimeoutError: an answer is missing.
    """
    sent: dict[str, float] = {}
    arrived: dict[str, float] = {}
    began_s = time.monotonic()
    for number in range(events):
        due_s = began_s + number / _PER_S
        while (wait_s := due_s - time.monotonic()) > 0:
            arrived.update(poll(wait_s))
        now_s = time.monotonic()
        sent[send()] = now_s
    last_s = time.monotonic()
    while not arrived.keys() >= sent.keys():
        if found := poll(0.05):
            arrived.update(found)
            last_s = time.monotonic()
        elif time.monotonic() - last_s > _TIMEOUT_S:
            missing = len(sent.keys() - arrived.keys())
            raise TimeoutError(f"{missing} of {events} answers did not arrive within {_TIMEOUT_S:g} s")
    return [(arrived[id] - at_s) * 1_000 for id, at_s in sent.items()]


class FaustAlone:
    """Sends events to the reference application and reads its answers."""

    def __init__(self, connection: KafkaConnection, event: bytes) -> None:
        """Connect; `event` is the value of every record that is sent."""
        self._event = event
        self._producer = Producer(
            {
                **producer(connection, "bench", delivery_timeout_s=_DELIVERY_TIMEOUT_S, linger_ms=0),
                "log_level": 2,
            }
        )
        self._consumer = Consumer({**reader(connection, "bench-reader"), "fetch.wait.max.ms": 5})
        self._consumer.assign([TopicPartition(OUTPUT, 0, OFFSET_BEGINNING)])
        self._sent = 0

    def send(self) -> str:
        """Send an event, and return its id."""
        id = f"faust-{self._sent}"
        self._sent += 1
        while True:
            try:
                self._producer.produce(INPUT, key=_KEY, value=self._event, headers=[(_ID, id.encode())])
                break
            except BufferError:
                self._producer.poll(0.05)
        self._producer.poll(0)
        return id

    def burst_s(self, events: int, timeout_s: float = 60.0) -> float:
        """Send a burst; return the time from first send to last answer.

        Raises:
            TimeoutError: no answer arrived for this time.
        """
        began_s = last_s = time.monotonic()
        for _ in range(events):
            self.send()
        self._producer.flush(60)
        seen = 0
        while seen < events:
            if arrivals := self.poll(0.05):
                seen += len(arrivals)
                last_s = max(arrivals.values())
            elif time.monotonic() - max(last_s, began_s) > timeout_s:
                raise TimeoutError(f"{seen} of {events} answers arrived, then none for {timeout_s:g} s")
        return last_s - began_s

    def latencies_ms(self, events: int) -> list[float]:
        """Return the latency of each of some events at 100 per second."""
        return paced_latencies_ms(self.send, self.poll, events)

    def poll(self, timeout_s: float) -> dict[str, float]:
        """Return the time of arrival, by id, of the next answer, if one arrives in time."""
        message = self._consumer.poll(timeout_s)
        if message is None or message.error() is not None:
            return {}
        headers: Any = message.headers()
        return {dict(headers)[_ID].decode(): time.monotonic()}

    def close(self) -> None:
        """Disconnect from the broker."""
        self._consumer.close()


@contextmanager
def faust_alone(
    connection: KafkaConnection, folder: Path, event: bytes, answer_bytes: int, timeout_s: float = 60.0
) -> Iterator[FaustAlone]:
    """Run the reference application in a process of its own, which is killed at the end.

    Yields once the application answers.

    Args:
        connection: connection to a broker without access control.
        answer_bytes: size of its answer to each event.

    Raises:
        TimeoutError: it does not answer in time.
    """
    admin = Administration(connection, timeout_s)
    topics = [INPUT, OUTPUT, _CHANGELOG]
    admin.create([NewTopic(topic, 1, replication_factor=1) for topic in topics])
    admin.await_topics(topics)
    environment = {
        **os.environ,
        _SERVERS: connection.bootstrap_servers,
        _FOLDER: str(folder / "faust-alone"),
        _ANSWER_BYTES: str(answer_bytes),
    }
    command = python_command("-m", "bench.spine.faust_alone")
    # Faust writes a progress indicator to standard output, which would precede the report.
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    line = FaustAlone(connection, event)
    try:
        line.send()
        deadline_s = time.monotonic() + timeout_s
        while not line.poll(0.1):
            if time.monotonic() > deadline_s or process.poll() is not None:
                raise TimeoutError(f"the Faust reference did not answer within {timeout_s:g} s")
        yield line
    finally:
        line.close()
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()


def _application(servers: str, folder: Path, answer: bytes) -> faust.App:
    app = faust.App(
        _APP,
        broker=[f"kafka://{server}" for server in servers.split(",")],
        datadir=folder,
        store="memory://",
        key_serializer="raw",
        value_serializer="raw",
        autodiscover=False,
        web_enabled=False,
        consumer_auto_offset_reset="earliest",
        topic_partitions=1,
    )
    output = _raw_topic(app, OUTPUT)
    seen = app.Table(
        "seen", partitions=1, key_type=bytes, value_type=bytes, changelog_topic=_raw_topic(app, _CHANGELOG)
    )

    @app.agent(_raw_topic(app, INPUT), concurrency=1)
    async def answer_each(stream: faust.StreamT[bytes]) -> None:
        async for event in stream.events():
            id = event.headers[_ID]
            seen[id] = event.value
            await output.send(key=event.key, value=answer, headers={_ID: id})

    return app


def _raw_topic(app: faust.App, name: str) -> Any:
    return app.topic(name, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw")


def main() -> None:
    """Run the application of the environment's settings. Never returns."""
    import uvloop

    # As in the worker.
    uvloop.install()
    folder = Path(os.environ[_FOLDER])
    folder.mkdir(parents=True, exist_ok=True)
    answer = b"0" * int(os.environ[_ANSWER_BYTES])
    faust.Worker(
        _application(os.environ[_SERVERS], folder, answer), loglevel="ERROR", redirect_stdouts=False
    ).execute_from_commandline()


if __name__ == "__main__":
    main()
