"""Settings of clients, for each way to connect."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from infra.kafka.credentials import write_certificates
from schemas.kafka_connection import KafkaConnection
from streams.kafka.configuration import administrator, command_line_tool, group_member, producer, reader
from streams.worker.faust.credentials import credentials

KINDS = {
    "producer": (Producer, lambda to: producer(to, "c", delivery_timeout_s=30.0, linger_ms=5)),
    "reader": (Consumer, lambda to: reader(to, "c")),
    "group": (Consumer, lambda to: group_member(to, "c", "g")),
    "administrator": (AdminClient, administrator),
}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("certificates")
    write_certificates(folder / "ca.pem", folder / "broker.pem", "127.0.0.1")
    return folder / "ca.pem", folder / "broker.pem"


@pytest.fixture(
    params=["PLAINTEXT", "SSL", "mutual TLS", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
)
def connection(request: pytest.FixtureRequest, certificates: tuple[Path, Path]) -> KafkaConnection:
    authority, own = certificates
    if request.param == "PLAINTEXT":
        return KafkaConnection(bootstrap_servers="127.0.0.1:1")
    fields = {"bootstrap_servers": "127.0.0.1:1", "kafka_ca_file": authority}
    if request.param == "SSL":
        return KafkaConnection(kafka_security_protocol="SSL", kafka_verify_hostname=False, **fields)
    if request.param == "mutual TLS":
        fields |= {"kafka_certificate_file": own, "kafka_key_file": own}
        return KafkaConnection(kafka_security_protocol="SSL", **fields)
    if request.param == "OAUTHBEARER":
        fields |= {"kafka_token_url": "http://127.0.0.1:1/token", "kafka_token_scope": "kafka"}
    return KafkaConnection(
        kafka_security_protocol="SASL_SSL",
        kafka_sasl_mechanism=request.param,
        kafka_username="ada",
        kafka_password="secret",
        **fields,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_librdkafka_accepts_every_client_configuration(kind, connection):
    # It refuses unknown names, values out of range and files with invalid contents.
    client, configuration = KINDS[kind]
    settings = {**configuration(connection), "log_level": 0}
    made = client(settings)
    if client is Consumer:
        made.close()
    assert settings["reconnect.backoff.max.ms"] <= 1_000
    assert settings["security.protocol"] == connection.kafka_security_protocol


def test_faust_takes_the_same_connections(connection):
    found = credentials(connection)
    if connection.kafka_security_protocol == "PLAINTEXT":
        assert found is None
        return
    assert found.protocol.value == connection.kafka_security_protocol
    context = getattr(found, "context", None) or found.ssl_context
    assert context.check_hostname == connection.kafka_verify_hostname
    assert context.get_ca_certs()[0]["subject"] == ((("commonName", "millrace-authority"),),)
    if connection.uses_sasl:
        assert found.mechanism.value == connection.kafka_sasl_mechanism
    assert "secret" not in repr(found)


def test_who_checks_no_host_still_checks_the_authority(certificates):
    unchecked = KafkaConnection(
        kafka_security_protocol="SSL", kafka_ca_file=certificates[0], kafka_verify_hostname=False
    )
    assert command_line_tool(unchecked)["ssl.endpoint.identification.algorithm"] == "none"
    assert "enable.ssl.certificate.verification" not in command_line_tool(unchecked)
