"""What tests of more than one package share."""

import uuid
from collections.abc import Iterator

import pytest

from infra.broker import broker


@pytest.fixture(scope="session", autouse=True)
def quick_java() -> Iterator[None]:
    """Brokers that live for seconds spend most of them compiling: the first compiler will do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")
        yield


@pytest.fixture(scope="session")
def kafka() -> Iterator[str]:
    """Bootstrap servers of the broker that all tests share, started for the first that asks."""
    with broker(ephemeral=True) as bootstrap_servers:
        yield bootstrap_servers


@pytest.fixture
def topic_prefix() -> str:
    """A prefix that no other test uses."""
    return f"test-{uuid.uuid4().hex[:12]}"
