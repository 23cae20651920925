"""The connection to Kafka: addresses, TLS and SASL. All clients of the project are configured by it alone."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import AnyHttpUrl, BaseModel, ConfigDict, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

ENVIRONMENT_PREFIX = "MILLRACE_"
"""Prefix of the environment variables that settings are read from."""
_TLS_FIELDS = ("kafka_ca_file", "kafka_certificate_file", "kafka_key_file", "kafka_key_password")
_SASL_FIELDS = (
    "kafka_sasl_mechanism",
    "kafka_username",
    "kafka_password",
    "kafka_password_file",
    "kafka_token_url",
    "kafka_token_scope",
)


class KafkaConnection(BaseModel):
    """Address of a Kafka cluster, and credentials of its client.

    Raises:
        ValidationError: the parts are inconsistent, or a file cannot be read; no message shows a secret.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, use_attribute_docstrings=True
    )

    bootstrap_servers: str = "127.0.0.1:9092"
    """Kafka's addresses, `host:port`, separated by commas."""
    kafka_security_protocol: SecurityProtocol = "PLAINTEXT"
    """Protocol of the cluster's listener."""
    kafka_ca_file: Path | None = None
    """PEM file of the authorities for the cluster's certificate; those of the system by default."""
    kafka_certificate_file: Path | None = None
    """PEM file of the client's own certificate, if the cluster requires one (mutual TLS)."""
    kafka_key_file: Path | None = None
    """PEM file of the certificate's private key."""
    kafka_key_password: SecretStr | None = None
    """Password of the key file, if it is encrypted."""
    kafka_verify_hostname: bool = True
    """Whether the cluster's certificate must match the host name."""
    kafka_sasl_mechanism: SaslMechanism | None = None
    """Mechanism of the client's authentication."""
    kafka_username: str | None = None
    """Name of the user; under OAUTHBEARER the id of an OIDC client."""
    kafka_password: SecretStr | None = None
    """Password of the user; under OAUTHBEARER the client's secret."""
    kafka_password_file: Path | None = None
    """A file with the password, instead of the variable; a line break at its end is ignored."""
    kafka_token_url: AnyHttpUrl | None = None
    """Endpoint of the tokens for OAUTHBEARER, by client credentials (OIDC)."""
    kafka_token_scope: str | None = None
    """Scope of these tokens."""

    @property
    def uses_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.kafka_security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether the client authenticates by SASL."""
        return self.kafka_security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    @property
    def password(self) -> str:
        """The password; read from its file at each access, if there is one.

        Raises:
            OSError: the file cannot be read.
        """
        if self.kafka_password_file is not None:
            return self.kafka_password_file.read_text(encoding="utf-8").removesuffix("\n")
        return "" if self.kafka_password is None else self.kafka_password.get_secret_value()

    def environment(self) -> dict[str, str]:
        """Return the environment variables of this connection, for a service with any environment.

        Unset fields are empty, which counts as unset.
        """
        return {f"MILLRACE_{name.upper()}": _text(value) for name, value in self.as_fields().items()}

    def as_fields(self) -> dict[str, Any]:
        """Return the fields by name, for settings that include a connection."""
        return {name: getattr(self, name) for name in KafkaConnection.model_fields}

    @model_validator(mode="after")
    def _check(self) -> Self:
        protocol = self.kafka_security_protocol
        if not self.uses_tls:
            self._refuse(_TLS_FIELDS, f"{protocol} is without TLS: set kafka_security_protocol")
        if not self.uses_sasl:
            self._refuse(_SASL_FIELDS, f"{protocol} is without SASL: set kafka_security_protocol")
        if (self.kafka_certificate_file is None) != (self.kafka_key_file is None):
            raise ValueError("kafka_certificate_file and kafka_key_file go together")
        if self.kafka_password is not None and self.kafka_password_file is not None:
            raise ValueError("kafka_password and kafka_password_file are both given: leave one out")
        if self.uses_sasl:
            self._check_sasl()
        for name in ("kafka_ca_file", "kafka_certificate_file", "kafka_key_file", "kafka_password_file"):
            _check_readable(name, getattr(self, name))
        return self

    def _check_sasl(self) -> None:
        if self.kafka_sasl_mechanism is None:
            raise ValueError(f"{self.kafka_security_protocol} needs kafka_sasl_mechanism")
        if self.kafka_username is None:
            raise ValueError(f"{self.kafka_sasl_mechanism} needs kafka_username")
        if self.kafka_password is None and self.kafka_password_file is None:
            raise ValueError(f"{self.kafka_sasl_mechanism} needs kafka_password_file or kafka_password")
        if self.kafka_sasl_mechanism == "OAUTHBEARER":
            if self.kafka_token_url is None:
                raise ValueError("OAUTHBEARER needs kafka_token_url")
        else:
            self._refuse(("kafka_token_url", "kafka_token_scope"), "only OAUTHBEARER has tokens")

    def _refuse(self, names: tuple[str, ...], why: str) -> None:
        given = [name for name in names if getattr(self, name) is not None]
        if given:
            raise ValueError(f"{', '.join(given)}: {why}, or leave it out")


class KafkaSettings(BaseSettings, KafkaConnection):
    """A connection from the environment: each field is the variable `MILLRACE_<FIELD>`."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        hide_input_in_errors=True,
    )


def _check_readable(name: str, path: Path | None) -> None:
    if path is None:
        return
    try:
        path.open("rb").close()
    except OSError as error:
        raise ValueError(f"{name}: {path}: {error.strerror}") from None


def _text(value: object) -> str:
    if value is None:
        return ""
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)
