"""Service that reads requests and sends answers. The offset of a request is committed only when the broker
has confirmed its answer.
"""

import logging
import threading
import time
from collections import deque
from typing import Annotated, Self

from confluent_kafka import KafkaException
from pydantic import Field, model_validator

from schemas.access import use_of_topics
from schemas.base import Identifier
from schemas.codec import InvalidRecordError, rfc3339
from schemas.service_base import SHORTEST_S, ServiceSettings, check_session
from schemas.solves import SolveFinished
from schemas.topics import SOLVES_REQUESTED, topic_name
from streams.kafka.administration import Administration
from streams.kafka.configuration import group_member
from streams.kafka.consumer import RecordConsumer
from streams.kafka.producer import ConfirmedProducer
from streams.kafka.records import ReadRecord
from streams.solver.answers import PendingSolve, answer_record, answer_to, pending_solve
from streams.solver.solving import Solved, SolveFailure, SolverProcess


class SolverSettings(ServiceSettings):
    """Settings of one solver process."""

    solver_group: Identifier = "solvers"
    """Solvers of one group share the requests among them; the consumer group is `<prefix>.<group>`."""
    session_timeout_s: Annotated[float, Field(ge=1, le=60)] = 8.0
    """Timeout after which a silent solver counts as dead, and another answers its requests."""
    heartbeat_s: Annotated[float, Field(ge=SHORTEST_S, le=20)] = 2.0
    solve_overrun_s: Annotated[float, Field(ge=SHORTEST_S, le=86_400)] = 60.0
    """Time beyond the request's limit after which a solve is aborted, and answered without a solution."""
    max_request_age_s: Annotated[float, Field(ge=SHORTEST_S)] = 86_400.0
    """Age of a request's record above which it is answered at once without a solution. So a group whose
    offsets were lost does not solve a long history before present requests; `inf` solves all."""

    @model_validator(mode="after")
    def _check_session(self) -> Self:
        check_session(self.session_timeout_s, self.heartbeat_s)
        return self


_CLIENT_ID = "millrace-solver"
_ANSWER_TIMEOUT_S = 10.0
_LARGEST_ANSWER_BYTES = 2 * 1024 * 1024
_POLL_S = 0.1

_log = logging.getLogger(__name__)


class UnconfirmedAnswerError(RuntimeError):
    """The broker has not confirmed an answer. Its request is not acknowledged, so a restart repeats it."""


class SolverService:
    """Answers the requests of its group's partitions, one after another.

    The group is polled while a solve runs, with its partitions paused: a long one costs no membership.
    """

    def __init__(self, settings: SolverSettings, solver: SolverProcess, stop: threading.Event) -> None:
        """Connect; `serve` joins the group.

        Raises:
            BrokerError: the broker does not answer, a topic is missing, or a right is.
        """
        self._settings = settings
        self._solver = solver
        self._stop = stop
        self._read: deque[ReadRecord] = deque()
        """Records received while a solve ran."""
        Administration(settings, _ANSWER_TIMEOUT_S).require(
            use_of_topics("solver", settings.topic_prefix), {_group(settings)}
        )
        self._consumer = _consumer(settings)
        self._producer = ConfirmedProducer(
            settings, _CLIENT_ID, settings.delivery_timeout_s, _log, message_max_bytes=_LARGEST_ANSWER_BYTES
        )

    def serve(self) -> None:
        """Answer requests until the stop event; a solve under way is abandoned, its request not acknowledged.

        Raises:
            UnconfirmedAnswerError: the broker does not accept an answer.
            KafkaException: requests cannot be read.
            SolverUnfitError: nothing can be solved here.
        """
        while not self._solver.ready and not self._stop.is_set():
            # Until then, others of the group can answer.
            self._solver.outcome(_POLL_S)
        self._consumer.subscribe(topic_name(self._settings.topic_prefix, SOLVES_REQUESTED))
        _log.info("solver ready group=%s", _group(self._settings))
        while not self._stop.is_set():
            record = self._next()
            if record is not None and self._handled(record):
                # If its partition has moved, the new solver answers again, under the same id.
                self._consumer.acknowledge(record)

    def close(self) -> None:
        """Commit acknowledged offsets and leave the group, as far as possible within the time of a stop."""
        # Without a broker, librdkafka's close waits without end (its issue 3740).
        closing = threading.Thread(target=self._consumer.close, name="close", daemon=True)
        closing.start()
        closing.join(self._settings.stop_timeout_s)
        if closing.is_alive():
            _log.warning(
                "group not left, no broker within %g s: the session timeout ends the membership",
                self._settings.stop_timeout_s,
            )

    def _next(self) -> ReadRecord | None:
        if not self._read:
            self._read += self._consumer.read(_POLL_S, most=1)
        return self._read.popleft() if self._read else None

    def _handled(self, record: ReadRecord) -> bool:
        """Answer the record if it contains a problem; return False if stopped before the answer."""
        try:
            pending = pending_solve(record)
        except InvalidRecordError as error:
            _log.warning(
                "record passed over topic=%s partition=%d offset=%d: %s",
                record.topic,
                record.partition,
                record.offset,
                error,
            )
            return True
        answer = self._answer(pending, record.timestamp_ms)
        if answer is None:
            _log.info("solve left for the next start %s", _named(pending))
            return False
        self._publish(pending, answer)
        found = "nothing" if answer.solution is None else answer.solution.kind
        _log.info("solve answered %s found=%s solve_s=%.3f", _named(pending), found, answer.solve_s)
        return True

    def _answer(self, pending: PendingSolve, timestamp_ms: int | None) -> SolveFinished | None:
        """Return an answer, or None after a stop."""
        age_s = 0.0 if timestamp_ms is None else time.time() - timestamp_ms / 1_000
        if age_s > self._settings.max_request_age_s:
            _log.warning("solve left out %s: the request is %.0f s old", _named(pending), age_s)
            return answer_to(pending, None, 0.0)
        _log.info("solve begun %s problem=%s", _named(pending), pending.problem.kind)
        began_s = time.monotonic()
        outcome = self._solved(pending)
        if isinstance(outcome, SolveFailure):
            _log.error("solve failed %s: %s", _named(pending), outcome.reason)
            return answer_to(pending, None, time.monotonic() - began_s)
        if outcome is None:
            return None
        answer = answer_to(pending, outcome.solution, outcome.solve_s)
        if answer.solution != outcome.solution:
            _log.warning("solution shortened %s: it is too long for an event", _named(pending))
        return answer

    def _solved(self, pending: PendingSolve) -> Solved | SolveFailure | None:
        self._solver.begin(pending.problem, pending.request.time_limit_s)
        outcome = None
        try:
            while outcome is None and not self._stop.is_set():
                # Repeated each time: partitions may have been assigned meanwhile.
                self._consumer.pause()
                self._read += self._consumer.read(0, most=1)
                outcome = self._solver.outcome(_POLL_S)
        finally:
            self._consumer.resume()
        return outcome

    def _publish(self, pending: PendingSolve, answer: SolveFinished) -> None:
        """Return when the broker has confirmed the answer.

        Raises:
            UnconfirmedAnswerError: it has not.
        """
        now = rfc3339(int(time.time() * 1_000))
        record = answer_record(self._settings.topic_prefix, pending, answer, now)
        try:
            self._producer.send(record)
        except KafkaException as error:
            raise UnconfirmedAnswerError(f"{record.topic}: {error.args[0].str()}") from None
        stop_by_s: float | None = None
        while self._producer.unconfirmed:
            self._producer.serve(_POLL_S)
            if self._stop.is_set():
                now_s = time.monotonic()
                stop_by_s = stop_by_s or now_s + self._settings.stop_timeout_s
                if now_s > stop_by_s:
                    raise UnconfirmedAnswerError(f"{record.topic}: not confirmed in time for a stop")
        if self._producer.fault is not None:
            raise UnconfirmedAnswerError(f"{record.topic}: {self._producer.fault.error.str()}")


def _consumer(settings: SolverSettings) -> RecordConsumer:
    return RecordConsumer(
        {
            **group_member(settings, _CLIENT_ID, _group(settings)),
            "session.timeout.ms": round(settings.session_timeout_s * 1_000),
            "heartbeat.interval.ms": round(settings.heartbeat_s * 1_000),
        },
        _log,
    )


def _group(settings: SolverSettings) -> str:
    return f"{settings.topic_prefix}.{settings.solver_group}"


def _named(pending: PendingSolve) -> str:
    return f"cell={pending.cell} zone={pending.request.zone} request={pending.request.request_id}"
