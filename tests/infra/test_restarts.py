"""When a service that has ended is started again."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.deployment.service import Service, command
from infra.errors import CommandError
from infra.kafka.process import MOST_RESTARTS
from schemas.service_base import EXIT_FAILED, EXIT_UNANSWERED, EXIT_UNFIT

TIMEOUT_S = 60.0


@pytest.fixture
def ending(tmp_path: Path) -> Iterator[Callable[[int], Service]]:
    services: list[Service] = []

    def start(status: int) -> Service:
        program = f"print('ended', flush=True); raise SystemExit({status})"
        services.append(Service("brief", command([sys.executable, "-c", program], {}), tmp_path))
        services[-1].start()
        return services[-1]

    yield start
    for service in services:
        service.stop()


def restart(service: Service) -> bool:
    end_s = time.monotonic() + TIMEOUT_S
    while service.exit_status is None:
        assert time.monotonic() < end_s
        time.sleep(0.01)
    return service.keep_running()


def test_service_without_broker_restarts_without_limit(ending: Callable[[int], Service]) -> None:
    service = ending(EXIT_UNANSWERED)
    assert [restart(service) for _ in range(MOST_RESTARTS + 2)] == [False] * (MOST_RESTARTS + 2)


def test_repeatedly_dying_service_is_given_up(ending: Callable[[int], Service]) -> None:
    service = ending(EXIT_FAILED)
    assert [restart(service) for _ in range(MOST_RESTARTS)] == [True] * MOST_RESTARTS
    with pytest.raises(CommandError, match="keeps dying"):
        restart(service)


def test_unfit_service_is_not_restarted(ending: Callable[[int], Service]) -> None:
    with pytest.raises(CommandError, match="cannot run: ended"):
        restart(ending(EXIT_UNFIT))
