"""Credentials of a secured local broker: certificate authority, certificates, and a password per role."""

import datetime
import ipaddress
import secrets
import shlex
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from infra.kafka.files import write_private
from infra.kafka.storage import LOOPBACK
from schemas.kafka_connection import KafkaConnection, SaslMechanism
from schemas.kind import ROLES, Role
from streams.kafka.configuration import command_line_tool

BROKER_NAME = "millrace-broker"
_VALID = datetime.timedelta(days=3_650)
_CLOCK_SKEW = datetime.timedelta(hours=1)


MECHANISM: Literal["SCRAM-SHA-512"] = "SCRAM-SHA-512"
FOR_TOOLS: Literal["PLAIN"] = "PLAIN"
ADMIN: Literal["admin"] = "admin"
"""Super user, which makes the principals and their permissions."""
SUPER_USERS = f"User:CN={BROKER_NAME};User:{ADMIN}"
"""Super users: the broker itself, by its certificate, and `admin`."""
_PASSWORD_BYTES = 24


def write_certificates(authority: Path, broker: Path, host: str) -> None:
    """Make an authority and sign one certificate with it, the broker's, for `host` and `localhost`.

    The authority's key is deleted: not even the owner of these files can sign another certificate. So a
    certificate of this authority authenticates the broker.

    Args:
        authority: File for the authority's certificate, with which clients verify the broker.
        broker: File for the broker's private key and certificate, as PEM; readable by its owner alone.
        host: IP address of the broker.
    """
    authority_key, broker_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = _name("millrace-authority")
    authority_certificate = (
        _builder(issuer, issuer, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(host))]
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    broker_certificate = (
        _builder(_name(BROKER_NAME), issuer, broker_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    private = broker_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem = serialization.Encoding.PEM
    write_private(broker, private + broker_certificate.public_bytes(pem))
    # Last: if this file exists, the other does too.
    write_private(authority, authority_certificate.public_bytes(pem))


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=key_cert_sign,
        encipher_only=False,
        decipher_only=False,
    )


Principal = Role | Literal["admin"]
PRINCIPALS: tuple[Principal, ...] = (*ROLES, ADMIN)


class Credentials:
    """The folder with a broker's certificates and its principals' passwords."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = folder / "ca.pem"
        self.broker = folder / "broker.pem"
        """File with the broker's key and certificate."""

    @property
    def exist(self) -> bool:
        """Whether the credentials have been made."""
        return self.authority.exists()

    def make(self) -> None:
        """Make missing passwords and certificates.

        Raises:
            OSError: the folder cannot be written.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for principal in PRINCIPALS:
            # A user's own password is kept.
            if not self.password_file(principal).exists():
                password = secrets.token_urlsafe(_PASSWORD_BYTES)
                write_private(self.password_file(principal), f"{password}\n".encode())
        if not self.exist:
            write_certificates(self.authority, self.broker, LOOPBACK)

    def password_file(self, principal: Principal) -> Path:
        return self.folder / f"{principal}.password"

    def connection(
        self, principal: Principal, bootstrap_servers: str, mechanism: SaslMechanism = MECHANISM
    ) -> KafkaConnection:
        """Return the connection of a principal.

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
        """Return the JAAS entries with which the broker checks passwords, by mechanism.

        The passwords of SCRAM are in the cluster. PLAIN, which sends the password to the broker, is for
        tools with a librdkafka before 2.6.1, whose SCRAM Kafka refuses since 3.8.1 (librdkafka's pull
        request 4895).
        """
        module = "org.apache.kafka.common.security"
        users = " ".join(f'user_{principal}="{self._password(principal)}"' for principal in PRINCIPALS)
        return {
            MECHANISM: f"{module}.scram.ScramLoginModule required;",
            FOR_TOOLS: f"{module}.plain.PlainLoginModule required {users};",
        }

    def brokers_own(self, bootstrap_servers: str) -> KafkaConnection:
        """Return the broker's connection to itself, also for the time before any user exists."""
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
        """Write a file for shells (`.env`) and one for tools on librdkafka (`.conf`) per principal."""
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
