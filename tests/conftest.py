"""Fixtures that tests of more than one package share."""

import atexit
import gc
import signal
import uuid
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings

from infra.kafka.local import LocalKafka
from infra.kafka.settings import BrokerSettings
from streams.installation import install_policies
from streams.worker.garbage import tune_gc
from tests.support.examples import examples
from tests.support.fork_server import attached_to_shared, shared_fork_server
from tests.support.shared_broker import shared_broker

# Before modules of tests are imported, which draw cases from the tables of types.
install_policies()

# Number of examples of property tests that state none. No deadline: an example may have to compile a kernel.
settings.register_profile("millrace", max_examples=examples(100), deadline=None)
settings.load_profile("millrace")

LONGEST = (
    "integration/test_elastic.py",
    "integration/test_demo.py",
    "integration/test_merging.py",
    "integration/test_experts.py",
    "integration/test_small_gang.py",
    "integration/test_worker.py",
    "integration/test_transactions.py",
    "integration/test_connections.py",
    # A process with one test is given a second file at once, which then waits for that test: a short one.
    "integration/test_round_robin.py",
    "integration/test_solver.py",
    "integration/test_lender.py",
    "integration/test_full_disk.py",
    "integration/test_up.py",
    "integration/test_moving_nodes.py",
    "integration/test_locked_cluster.py",
    "integration/test_distribution.py",
    "integration/test_broker.py",
    "integration/test_executor.py",
    "integration/test_secured_deployment.py",
    "streams/test_posted_prices.py",
    "streams/test_posted_extremes.py",
    "streams/test_cell_fuzz.py",
    "streams/cell/test_other_prices.py",
    "executors/tuner/classifiers/test_classifier_jobs.py",
    "executors/moe/training/test_training_on_nodes.py",
    "executors/tuner/test_profile.py",
    "streams/test_absurd_bids.py",
    "executors/elastic/test_preemption.py",
    "streams/merging/test_histories.py",
    "streams/outcomes/test_outcomes.py",
    "executors/tuner/classifiers/test_classifier_modes.py",
    "executors/tuner/pipeline/test_pipeline_training.py",
    "executors/elastic/test_scaling.py",
    "executors/tuner/pipeline/test_pipeline_switch.py",
    "bench/auction/test_misreports.py",
    "executors/tuner/test_validation.py",
    "streams/test_warm_up.py",
    "streams/solver/test_solving.py",
    "streams/test_histories.py",
    "infra/lender/test_lstm.py",
    "streams/test_round_robin.py",
)
"""Files that are begun first, since one that is begun last delays the end."""


_STACK = pytest.StashKey[ExitStack]()


def pytest_configure(config: pytest.Config) -> None:
    """Have parallel test processes share a fork server, and raise KeyboardInterrupt at SIGINT."""
    # A script has what it starts in the background ignore SIGINT, and all its children with it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stack = config.stash[_STACK] = ExitStack()
    if hasattr(config, "workerinput"):
        stack.enter_context(attached_to_shared())
    elif getattr(config.option, "numprocesses", None):
        stack.enter_context(shared_fork_server())


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_STACK].close()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while modules are imported, and exclude their objects from later collections.

    All modules and tests are some millions of objects, and each full search takes over half a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        tune_gc()
        # Triton reports what is left at the end as leaked.
        atexit.register(gc.unfreeze)
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the longest files to the front; all others stay in their order."""
    order = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


@pytest.fixture(scope="session", autouse=True)
def quick_java() -> Iterator[None]:
    """Restrict Java to its first compiler: brokers that live for seconds would spend most of them
    compiling."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")
        yield


@pytest.fixture(scope="session")
def kafka() -> Iterator[str]:
    """Bootstrap servers of the broker that all tests share, started for the first that asks."""
    with shared_broker() as bootstrap_servers:
        yield bootstrap_servers


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A broker with TLS, SASL and access control that tests share; only `admin` has rights on it."""
    settings = BrokerSettings(bootstrap_servers=None, broker_secure=True)
    with LocalKafka(tmp_path_factory.mktemp("secured"), settings) as kafka:
        yield kafka


@pytest.fixture
def topic_prefix() -> str:
    """A prefix that no other test uses."""
    return f"test-{uuid.uuid4().hex[:12]}"
