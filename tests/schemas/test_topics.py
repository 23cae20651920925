import pytest

from schemas.topics import FOR_EVER, INPUTS, TopicSpec, dead_letter_name, topic_name, topics

SPECS = {spec.name: spec for spec in topics("p", partitions=3, command_partitions=5)}


def test_every_topic_is_there_once() -> None:
    assert sorted(SPECS) == [
        "p.cells",
        "p.cells.dlt",
        "p.clock",
        "p.clock.dlt",
        "p.commands",
        "p.decisions",
        "p.fleet",
        "p.fleet.dlt",
        "p.inference",
        "p.inference.dlt",
        "p.jobs",
        "p.jobs.dlt",
        "p.jobs.state",
        "p.ledger",
        "p.ledger.dlt",
        "p.loans",
        "p.prices",
        "p.profiles",
        "p.profiles.dlt",
        "p.quotes",
        "p.quotes.dlt",
        "p.rules.states",
        "p.solves.finished",
        "p.solves.finished.dlt",
        "p.solves.requested",
        "p.staffing",
        "p.zones.state",
    ]
    assert len(topics()) == len(SPECS)


def test_all_but_commands_are_partitioned_alike() -> None:
    assert {name: spec.partitions for name, spec in SPECS.items() if spec.partitions != 3} == {
        "p.commands": 5
    }


def test_what_is_kept_for_ever() -> None:
    kept = {
        name
        for name, spec in SPECS.items()
        if spec.cleanup_policy == "delete" and spec.retention_ms == FOR_EVER
    }
    assert kept == {"p.ledger", "p.decisions", "p.rules.states"}
    bounded = {name for name, spec in SPECS.items() if spec.retention_bytes != FOR_EVER}
    assert bounded == {"p.solves.requested"}


def test_problems_use_bounded_disk() -> None:
    spec = SPECS["p.solves.requested"]
    assert spec.retention_ms == 24 * 60 * 60 * 1_000
    assert int(spec.config()["segment.bytes"]) * 8 == spec.retention_bytes == 512 * 1024**2


def test_broker_decompresses_only_untrusted_topics() -> None:
    uncompressed = {name for name, spec in SPECS.items() if spec.compression_type == "uncompressed"}
    assert uncompressed == {topic_name("p", name) for name in INPUTS}


def test_a_record_fits_wherever_it_goes_next() -> None:
    ledger = SPECS["p.ledger"]
    for name in INPUTS:
        source = SPECS[topic_name("p", name)]
        assert source.max_message_bytes < ledger.max_message_bytes
        assert source.max_message_bytes < SPECS[dead_letter_name(source.name)].max_message_bytes
    assert ledger.max_message_bytes < SPECS[dead_letter_name(ledger.name)].max_message_bytes


@pytest.mark.parametrize("name", ["", "with space", "a/b", "x" * 250])
def test_a_name_that_kafka_refuses_is_refused_here(name: str) -> None:
    with pytest.raises(ValueError, match="is not a topic name"):
        TopicSpec(name, partitions=1, retention_ms=FOR_EVER)


def test_a_topic_has_a_partition() -> None:
    with pytest.raises(ValueError, match="needs at least one partition, not 0"):
        topics(partitions=0)
