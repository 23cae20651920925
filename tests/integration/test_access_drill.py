"""Each role against each topic of a secured broker, reading and writing, and against what no role may do."""

import logging
import time
from collections.abc import Callable

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from infra.kafka.local import LocalKafka
from infra.topics import apply_grants, ensure_topics, grants
from schemas.access import DEFAULT_GROUPS, topic_rights
from schemas.kind import ROLES
from schemas.topics import topics
from streams.kafka.administration import Administration
from streams.kafka.configuration import command_line_tool
from streams.solver.service import SolverSettings
from streams.worker.settings import WorkerSettings

PREFIX = "drill"
SILENT = logging.Logger("silent", logging.CRITICAL + 1)
TIMEOUT_S = 30.0
# What each role may do, written down from what the role is for and not from the code's own table:
# r reads, w writes, - neither.
EXPECTED = """
                      users vendors profilers inference operators nodes worker solver auditor
cells                 -     -       -         -         w         -     r      -      r
jobs                  w     -       -         -         -         -     r      -      r
quotes                -     w       -         -         -         -     r      -      r
profiles              -     -       w         -         -         -     r      -      r
fleet                 -     -       -         -         -         w     r      -      r
clock                 -     -       -         -         w         -     r      -      r
inference             -     -       -         rw        -         -     r      -      r
solves.finished       -     -       -         -         -         -     r      w      r
ledger                -     -       -         -         r         -     rw     -      r
decisions             r     r       r         r         r         -     w      -      r
solves.requested      -     -       -         -         -         -     w      r      r
rules.states          -     -       -         -         -         -     w      -      r
commands              -     -       -         -         -         r     w      -      r
prices                r     -       -         r         -         -     w      -      r
staffing              r     -       -         r         -         -     w      -      r
jobs.state            r     -       -         r         -         -     w      -      r
loans                 r     -       -         r         -         -     w      -      r
zones.state           -     -       -         r         -         -     w      -      r
snapshots             -     -       -         -         -         -     rw     -      r
cells.dlt             -     -       -         -         r         -     w      -      r
jobs.dlt              r     -       -         -         r         -     w      -      r
quotes.dlt            -     r       -         -         r         -     w      -      r
profiles.dlt          -     -       r         -         r         -     w      -      r
fleet.dlt             -     -       -         -         r         -     w      -      r
clock.dlt             -     -       -         -         r         -     w      -      r
inference.dlt         -     -       -         r         r         -     w      -      r
solves.finished.dlt   -     -       -         -         r         -     w      -      r
ledger.dlt            -     -       -         -         r         -     w      -      r
"""


def expected() -> dict[str, dict[str, str]]:
    """By role, then topic."""
    head, *rows = (line.split() for line in EXPECTED.strip().splitlines())
    return {
        role: {name: rights[column].strip("-") for name, *rights in rows} for column, role in enumerate(head)
    }


@pytest.fixture(scope="module")
def kafka(secured: LocalKafka) -> LocalKafka:
    """With one record in each topic, and the rights given."""
    admin = secured.connection("admin")
    ensure_topics(admin, topics(PREFIX, partitions=1, command_partitions=1))
    client = AdminClient(command_line_tool(admin))
    for made in client.create_topics([NewTopic(f"{PREFIX}.snapshots", 1, 1)]).values():
        made.result(TIMEOUT_S)
    assert apply_grants(admin, grants(PREFIX)) == []
    assert written(secured, "admin") == set(expected()["users"])
    return secured


def written(kafka: LocalKafka, principal: str) -> set[str]:
    """The topics that take a record from a principal."""
    taken: set[str] = set()
    refused: dict[str, KafkaError] = {}

    def note(error: KafkaError | None, message) -> None:
        name = message.topic().removeprefix(f"{PREFIX}.")
        if error is None:
            taken.add(name)
        else:
            refused[name] = error

    settings = command_line_tool(kafka.connection(principal))
    # An idempotent one is refused as a whole where a principal may write nothing.
    sender = Producer({**settings, "acks": "all", "enable.idempotence": False, "log_level": 0})
    for name in expected()["users"]:
        sender.produce(f"{PREFIX}.{name}", b"{}", key=b"c", partition=0, on_delivery=note)
    assert sender.flush(TIMEOUT_S) == 0
    assert {error.code() for error in refused.values()} <= {KafkaError.TOPIC_AUTHORIZATION_FAILED}
    return taken


def read(kafka: LocalKafka, principal: str) -> set[str]:
    """The topics that give a principal their record."""
    consumer = Consumer(
        {**command_line_tool(kafka.connection(principal)), "group.id": "none", "log_level": 0}
        | {"enable.auto.commit": False}
    )
    names = set(expected()["users"])
    given, refused = set(), set()
    try:
        for name in names:
            topic = f"{PREFIX}.{name}"
            error = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].error
            if error is not None:  # not even that it exists
                assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
                refused.add(name)
        consumer.assign([TopicPartition(f"{PREFIX}.{name}", 0, 0) for name in names - refused])
        deadline_s = time.monotonic() + TIMEOUT_S
        while given | refused != names:
            assert time.monotonic() < deadline_s, f"neither given nor refused: {names - given - refused}"
            message = consumer.poll(0.5)
            if message is None or message.topic() is None:
                continue  # about the group, which does not matter here
            name = message.topic().removeprefix(f"{PREFIX}.")
            if message.error() is None:
                given.add(name)
            else:
                assert message.error().code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
                refused.add(name)
    finally:
        consumer.close()
    assert not given & refused
    return given


@pytest.mark.parametrize("role", ROLES)
def test_roles_have_exactly_the_rights_they_need(kafka: LocalKafka, role: str) -> None:
    table = expected()[role]
    assert read(kafka, role) == {name for name, rights in table.items() if "r" in rights}
    assert written(kafka, role) == {name for name, rights in table.items() if "w" in rights}


def test_the_drill_is_about_every_role_and_topic() -> None:
    assert tuple(expected()) == ROLES
    names = {spec.name.removeprefix(f"{PREFIX}.") for spec in topics(PREFIX)}
    assert set(expected()["users"]) == names | {"snapshots"}


def test_the_worker_alone_writes_what_is_decided() -> None:
    for name in ("ledger", "decisions", "rules.states", "commands", "prices", "jobs.state", "snapshots"):
        assert [role for role in ROLES if "w" in expected()[role][name]] == ["worker"]
    assert "w" not in "".join(expected()["auditor"].values())


def refusals(kafka: LocalKafka, role: str) -> dict[str, Callable[[], object]]:
    """Return what is tried, by name; each is to be refused to every role but those named in the test."""
    settings = {**command_line_tool(kafka.connection(role)), "log_level": 0}
    admin = AdminClient(settings)

    def transaction() -> None:
        sender = Producer({**settings, "transactional.id": f"{PREFIX}.{role}"}, logger=SILENT)
        sender.init_transactions(TIMEOUT_S)

    def own_right() -> None:
        binding = AclBinding(
            ResourceType.TOPIC,
            f"{PREFIX}.ledger",
            ResourcePatternType.LITERAL,
            f"User:{role}",
            "*",
            AclOperation.ALL,
            AclPermissionType.ALLOW,
        )
        admin.create_acls([binding])[binding].result(TIMEOUT_S)

    readable = next(name for name, rights in expected()[role].items() if "r" in rights)

    def join(group: str) -> Callable[[], None]:
        place = TopicPartition(f"{PREFIX}.{readable}", 0, 0)
        request = ConsumerGroupTopicPartitions(f"{PREFIX}.{group}", [place])
        return lambda: answer_of(admin.alter_consumer_group_offsets([request]))

    return {
        "a transaction": transaction,
        "a right for itself": own_right,
        "a topic": lambda: created(admin, f"{PREFIX}.other"),
        "a topic deleted": lambda: answer_of(admin.delete_topics([f"{PREFIX}.decisions"])),
        "the worker's group": join("cells"),
        "the solver's group": join("solvers"),
        "another group": join("mine"),
    }


def created(admin: AdminClient, name: str) -> None:
    answer_of(admin.create_topics([NewTopic(name, 1, 1)]))


def answer_of(answers) -> None:
    for answer in answers.values():
        answer.result(TIMEOUT_S)


@pytest.mark.parametrize("role", ROLES)
def test_no_role_does_more_than_read_and_write(kafka: LocalKafka, role: str) -> None:
    own_group = {"worker": "the worker's group", "solver": "the solver's group"}.get(role)
    for name, attempt in refusals(kafka, role).items():
        if name == own_group:
            attempt()
        else:
            with pytest.raises(KafkaException, match="AUTHORIZATION_FAILED"):
                attempt()


def test_table_has_groups_that_services_join() -> None:
    assert DEFAULT_GROUPS["worker"] == WorkerSettings.model_fields["worker_group"].default
    assert DEFAULT_GROUPS["solver"] == SolverSettings.model_fields["solver_group"].default


def test_rights_hold_as_soon_as_reported(secured: LocalKafka) -> None:
    admin, nodes = secured.connection("admin"), secured.connection("nodes")
    prefixes = [f"{PREFIX}-{number}" for number in range(3)]
    for prefix in prefixes:
        ensure_topics(admin, topics(prefix, partitions=1, command_partitions=1))
    for prefix in prefixes:
        apply_grants(admin, grants(prefix))
        rights = topic_rights("nodes", prefix)
        assert Administration(nodes, TIMEOUT_S).require(rights).keys() == rights.keys()


def test_unlisted_right_is_named(kafka: LocalKafka) -> None:
    admin = kafka.connection("admin")
    extra = AclBinding(
        ResourceType.TOPIC,
        f"{PREFIX}.led",
        ResourcePatternType.PREFIXED,
        "User:vendors",
        "*",
        AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )
    client = AdminClient(command_line_tool(admin))
    client.create_acls([extra])[extra].result(TIMEOUT_S)
    deadline_s = time.monotonic() + TIMEOUT_S
    try:
        # The broker shows rights that another client was given a moment later.
        while not (beyond := apply_grants(admin, grants(PREFIX))):
            assert time.monotonic() < deadline_s
        assert beyond == [f"allow User:vendors from * WRITE on topic {PREFIX}.led (by prefix)"]
    finally:
        by_prefix = AclBindingFilter(
            ResourceType.TOPIC,
            f"{PREFIX}.led",
            ResourcePatternType.PREFIXED,
            None,
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        answer_of(client.delete_acls([by_prefix]))
