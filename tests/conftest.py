"""What tests of more than one package share."""

import uuid
from collections.abc import Iterator

import pytest
from hypothesis import settings

from infra.broker import BrokerSettings, LocalKafka, broker
from tests.support.examples import examples

# Of the property tests that name no number themselves.
settings.register_profile("millrace", max_examples=examples(100))
settings.load_profile("millrace")


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


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A broker with TLS, SASL and access control that tests share; nobody but `admin` has a right on it."""
    settings = BrokerSettings(bootstrap_servers=None, broker_secure=True)
    with LocalKafka(tmp_path_factory.mktemp("secured"), settings) as kafka:
        yield kafka


@pytest.fixture
def topic_prefix() -> str:
    """A prefix that no other test uses."""
    return f"test-{uuid.uuid4().hex[:12]}"
