"""The principals of a secured local broker: a user for each role, with a password in a file."""

import secrets
import shlex
from pathlib import Path
from typing import Literal

from infra.kafka.certificates import BROKER_NAME, write_certificates
from infra.kafka.private_files import write_private
from infra.kafka.properties import LOOPBACK
from schemas.access import ROLES, Role
from schemas.kafka_connection import KafkaConnection, SaslMechanism
from streams.kafka.configuration import command_line_tool

MECHANISM: Literal["SCRAM-SHA-512"] = "SCRAM-SHA-512"
FOR_TOOLS: Literal["PLAIN"] = "PLAIN"
ADMIN: Literal["admin"] = "admin"
"""May do everything: makes the principals and their rights."""
Principal = Role | Literal["admin"]
PRINCIPALS: tuple[Principal, ...] = (*ROLES, ADMIN)
SUPER_USERS = f"User:CN={BROKER_NAME};User:{ADMIN}"
"""The broker itself, by its certificate, and `admin`."""

_PASSWORD_BYTES = 24


class Credentials:
    """The folder with a broker's certificates and its principals' passwords."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = folder / "ca.pem"
        self.broker = folder / "broker.pem"
        """The broker's key and certificate."""

    @property
    def exist(self) -> bool:
        """Whether they have been made."""
        return self.authority.exists()

    def make(self) -> None:
        """Make what is missing.

        Raises:
            OSError: the folder cannot be written.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for principal in PRINCIPALS:
            # One that somebody has put there is kept.
            if not self.password_file(principal).exists():
                password = secrets.token_urlsafe(_PASSWORD_BYTES)
                write_private(self.password_file(principal), f"{password}\n".encode())
        if not self.exist:
            write_certificates(self.authority, self.broker, LOOPBACK)

    def password_file(self, principal: Principal) -> Path:
        """Where a principal's password is."""
        return self.folder / f"{principal}.password"

    def connection(
        self, principal: Principal, bootstrap_servers: str, mechanism: SaslMechanism = MECHANISM
    ) -> KafkaConnection:
        """How a principal connects.

        Raises:
            ValidationError: this process may not read the password's file.
        """
        return KafkaConnection(
            bootstrap_servers=bootstrap_servers,
            kafka_security_protocol="SASL_SSL",
            kafka_ca_file=self.authority,
            kafka_sasl_mechanism=mechanism,
            kafka_username=principal,
            kafka_password_file=self.password_file(principal),
        )

    def logins(self) -> dict[str, str]:
        """What the broker checks passwords against, by mechanism, as JAAS has it.

        SCRAM's are in the cluster. PLAIN, which gives the password away to the broker, is for tools with a
        librdkafka before 2.6.1, whose SCRAM Kafka refuses since 3.8.1 (librdkafka's pull request 4895).
        """
        module = "org.apache.kafka.common.security"
        users = " ".join(f'user_{principal}="{self._password(principal)}"' for principal in PRINCIPALS)
        return {
            MECHANISM: f"{module}.scram.ScramLoginModule required;",
            FOR_TOOLS: f"{module}.plain.PlainLoginModule required {users};",
        }

    def brokers_own(self, bootstrap_servers: str) -> KafkaConnection:
        """How the broker connects to itself, and we to it before there is any user."""
        return KafkaConnection(
            bootstrap_servers=bootstrap_servers,
            kafka_security_protocol="SSL",
            kafka_ca_file=self.authority,
            kafka_certificate_file=self.broker,
            kafka_key_file=self.broker,
        )

    def _password(self, principal: Principal) -> str:
        return self.connection(principal, LOOPBACK).password

    def write_for_tools(self, bootstrap_servers: str) -> None:
        """Write what a shell (`.env`) and tools on librdkafka, such as kcat (`.conf`), need for each."""
        for principal in PRINCIPALS:
            connection = self.connection(principal, bootstrap_servers)
            variables = connection.environment().items()
            environment = "".join(
                f"export {name}={shlex.quote(value)}\n" for name, value in variables if value
            )
            write_private(self.folder / f"{principal}.env", environment.encode())
            plain = command_line_tool(self.connection(principal, bootstrap_servers, FOR_TOOLS))
            lines = (f"{name}={value}\n" for name, value in plain.items())
            write_private(self.folder / f"{principal}.conf", "".join(lines).encode())
