"""Solver process: from its settings to an orderly stop."""

import logging
import sys
import threading
from contextlib import closing
from typing import NoReturn

from confluent_kafka import KafkaException

from schemas.service_base import EXIT_FAILED, EXIT_UNFIT, begin_service, require_extra_of, stopped_by_signals
from streams.kafka.faults import BrokerError, UnansweredError
from streams.solver.service import SolverService, SolverSettings
from streams.solver.solving import SolverProcess

_log = logging.getLogger(__name__)


def run_solver(settings: SolverSettings) -> None:
    """Answer requests until SIGTERM or SIGINT, and return after an orderly stop. Call it from the main
    thread.

    Raises:
        SystemExit: with `EXIT_UNFIT` if the solver cannot start with its settings, with `EXIT_UNANSWERED` if
            no broker answers at the start, and with `EXIT_FAILED` if it cannot continue; the reason is a line
            on standard error.
    """
    require_extra_of("solver", "solver")
    begin_service(settings)
    try:
        with stopped_by_signals() as stop, closing(SolverProcess(settings.solve_overrun_s)) as solver:
            service = _connected(settings, solver, stop)
            try:
                service.serve()
            finally:
                service.close()
    except Exception as error:
        _log.debug("solver failed", exc_info=error)
        _end(EXIT_FAILED, _message_of(error))
    _log.info("solver stopped")


def _connected(settings: SolverSettings, solver: SolverProcess, stop: threading.Event) -> SolverService:
    try:
        return SolverService(settings, solver, stop)
    except UnansweredError as error:
        _end(error.exit_status, str(error))
    except BrokerError as error:
        _end(EXIT_UNFIT, str(error))


def _message_of(error: Exception) -> str:
    text = error.args[0].str() if isinstance(error, KafkaException) else str(error)
    return f"{type(error).__name__}: {text}"


def _end(status: int, message: str) -> NoReturn:
    sys.stderr.write(f"millrace solver: {message}\n")
    raise SystemExit(status)
