"""Settings of a connection that belong together, and secrets that are not shown."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from schemas.codec import describe
from schemas.kafka_connection import KafkaConnection, KafkaSettings
from schemas.service_base import ServiceSettings

SECRET = "correct horse"
SCRAM = {
    "kafka_security_protocol": "SASL_SSL",
    "kafka_sasl_mechanism": "SCRAM-SHA-512",
    "kafka_username": "ada",
    "kafka_password": SECRET,
}
OAUTH = {**SCRAM, "kafka_sasl_mechanism": "OAUTHBEARER", "kafka_token_url": "https://idp.example/token"}

FAULTS = {
    "an unknown protocol": ({"kafka_security_protocol": "TLS"}, "kafka_security_protocol: Input should be"),
    "an unknown mechanism": ({**SCRAM, "kafka_sasl_mechanism": "MD5"}, "kafka_sasl_mechanism: Input should"),
    "an authority without TLS": ({"kafka_ca_file": "ca.pem"}, "kafka_ca_file: PLAINTEXT is without TLS"),
    "an authority under SASL without TLS": (
        {**SCRAM, "kafka_security_protocol": "SASL_PLAINTEXT", "kafka_ca_file": "ca.pem"},
        "kafka_ca_file: SASL_PLAINTEXT is without TLS",
    ),
    "a password without SASL": (
        {"kafka_security_protocol": "SSL", "kafka_password": SECRET},
        "kafka_password: SSL is without SASL",
    ),
    "a user alone": ({"kafka_username": "ada"}, "kafka_username: PLAINTEXT is without SASL"),
    "no mechanism": ({"kafka_security_protocol": "SASL_SSL"}, "SASL_SSL needs kafka_sasl_mechanism"),
    "no user": ({**SCRAM, "kafka_username": None}, "SCRAM-SHA-512 needs kafka_username"),
    "no password": ({**SCRAM, "kafka_password": None}, "needs kafka_password_file or kafka_password"),
    "two passwords": ({**SCRAM, "kafka_password_file": "p"}, "are both given: leave one out"),
    "a certificate without key": (
        {"kafka_security_protocol": "SSL", "kafka_certificate_file": "c.pem"},
        "kafka_certificate_file and kafka_key_file go together",
    ),
    "no token endpoint": ({**OAUTH, "kafka_token_url": None}, "OAUTHBEARER needs kafka_token_url"),
    "a token endpoint that is none": ({**OAUTH, "kafka_token_url": "idp"}, "kafka_token_url: Input should"),
    "tokens under SCRAM": ({**SCRAM, "kafka_token_scope": "kafka"}, "only OAUTHBEARER has tokens"),
    "a file that is not there": (
        {"kafka_security_protocol": "SSL", "kafka_ca_file": "/nowhere/ca.pem"},
        "kafka_ca_file: /nowhere/ca.pem: No such file or directory",
    ),
}


@pytest.mark.parametrize(("fields", "fault"), FAULTS.values(), ids=FAULTS.keys())
def test_contradicting_connection_is_refused_in_one_line(fields, fault, monkeypatch):
    with pytest.raises(ValidationError) as refused:
        KafkaConnection(**fields)
    assert fault in describe(refused.value)
    assert "\n" not in describe(refused.value)
    assert SECRET not in str(refused.value)
    for name, value in fields.items():
        if value is not None:
            monkeypatch.setenv(f"MILLRACE_{name.upper()}", value)
    for settings in (KafkaSettings, ServiceSettings):
        with pytest.raises(ValidationError) as refused:
            settings()
        assert fault in describe(refused.value)
        assert SECRET not in str(refused.value)


@pytest.mark.parametrize("fields", [{}, SCRAM, OAUTH], ids=["open", "scram", "oauth"])
def test_service_connection_ignores_its_environment(fields, monkeypatch):
    for name, value in (SCRAM if fields is OAUTH else OAUTH).items():
        monkeypatch.setenv(f"MILLRACE_{name.upper()}", value)
    connection = KafkaConnection(bootstrap_servers="a:1,b:2", **fields)
    for name, value in connection.environment().items():
        monkeypatch.setenv(name, value)
    assert KafkaSettings().as_fields() == connection.as_fields()
    assert ServiceSettings().as_fields() == connection.as_fields()


def test_password_is_shown_only_on_request(tmp_path: Path):
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    of_file = {**SCRAM, "kafka_password": None, "kafka_password_file": file}
    for connection in (KafkaConnection(**SCRAM), KafkaConnection(**of_file)):
        assert connection.password == SECRET
        assert SECRET not in repr(connection) + str(connection) + connection.model_dump_json()
    assert SECRET not in str(KafkaConnection(**of_file).environment())


def test_password_file_is_read_again(tmp_path: Path):
    file = tmp_path / "password"
    file.write_text("old")
    connection = KafkaConnection(**{**SCRAM, "kafka_password": None, "kafka_password_file": file})
    assert connection.password == "old"
    file.write_text("new\n")
    assert connection.password == "new"
