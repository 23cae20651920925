"""Both of Kafka's client libraries come in by every way that a connection may name."""

import asyncio
import base64
import json
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth

from infra.kafka.local import LocalKafka
from infra.kafka.settings import BrokerSettings
from infra.topics import ensure_topics
from schemas.kafka_connection import KafkaConnection
from schemas.topics import TopicSpec
from streams.kafka.administration import Administration
from streams.kafka.faults import BrokerError
from streams.kafka.reader import KafkaReader
from streams.worker.faust.credentials import credentials

TOPIC = TopicSpec("ways.jobs", partitions=1, retention_ms=-1)
SECRET = "of the client"
TIMEOUT_S = 30.0


class KafkaWithTokens(LocalKafka):
    """A broker that also accepts OAUTHBEARER, with any token: the token endpoint decides who gets one."""

    def _properties(self) -> dict[str, str]:
        properties = super()._properties()
        properties["sasl.enabled.mechanisms"] += ",OAUTHBEARER"
        module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
        properties["listener.name.secure.oauthbearer.sasl.jaas.config"] = f"{module} required;"
        return properties


class Endpoint(BaseHTTPRequestHandler):
    """Gives tokens without a signature to whoever has the secret."""

    def do_POST(self) -> None:
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        basic = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
        user, _, secret = basic.partition(":")
        # A form's words for it, as RFC 6749, 2.3.1, has it, or as it is: libraries differ.
        allowed = secret.replace("+", " ").replace("%20", " ") == SECRET
        assert "grant_type=client_credentials" in form
        now_s = int(time.time())
        claims = {"sub": user, "iat": now_s, "exp": now_s + 300}
        token = ".".join(map(part, ({"alg": "none"}, claims))) + "."
        body = {"access_token": token, "expires_in": 300} if allowed else {"error": "invalid_client"}
        self.send_response(200 if allowed else 401)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def part(value: dict[str, object]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    settings = BrokerSettings(bootstrap_servers=None, broker_secure=True)
    with KafkaWithTokens(tmp_path_factory.mktemp("tokens"), settings) as kafka:
        ensure_topics(kafka.connection("admin"), [TOPIC])
        yield kafka


@pytest.fixture(scope="module")
def token_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/token"
        server.shutdown()
        thread.join()


def connection(kafka: LocalKafka, way: str, token_url: str, folder: Path) -> KafkaConnection:
    """As one who may do everything, by one of the ways in."""
    assert kafka.credentials is not None
    if way == "mutual TLS":
        return kafka._own_connection()
    if way != "OAUTHBEARER":
        return kafka.credentials.connection("admin", kafka.bootstrap_servers, way)
    secret = folder / "secret"
    secret.write_text(SECRET)
    fields = kafka.connection("admin").as_fields()
    fields |= {"kafka_sasl_mechanism": way, "kafka_token_url": token_url, "kafka_password_file": secret}
    return KafkaConnection(**fields)


@pytest.mark.parametrize("way", ["PLAIN", "SCRAM-SHA-512", "OAUTHBEARER", "mutual TLS"])
def test_both_libraries_come_in(kafka: LocalKafka, token_url: str, tmp_path: Path, way: str) -> None:
    us = connection(kafka, way, token_url, tmp_path)

    async def send() -> None:
        auth = credentials_to_aiokafka_auth(credentials(us))
        producer = AIOKafkaProducer(bootstrap_servers=us.bootstrap_servers, **auth)
        await producer.start()
        try:
            await producer.send_and_wait(TOPIC.name, way.encode())
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(send(), TIMEOUT_S))
    with KafkaReader(us) as reader:
        assert [record.value for record in reader.read(reader.slice(TOPIC.name))][-1] == way.encode()
    assert Administration(us, TIMEOUT_S).require({TOPIC.name: {"READ", "WRITE"}}) == {TOPIC.name: 1}


def test_who_gets_no_token_reads_so(kafka: LocalKafka, token_url: str, tmp_path: Path) -> None:
    us = connection(kafka, "OAUTHBEARER", token_url, tmp_path)
    (tmp_path / "secret").write_text("of another")
    began_s = time.monotonic()
    with pytest.raises(BrokerError, match=r"no token that it accepts .*: see MILLRACE_KAFKA_TOKEN_URL"):
        Administration(us, TIMEOUT_S).await_broker()
    assert time.monotonic() - began_s < 10

    async def ask() -> None:
        await credentials(us).oauth_cb.token()

    with pytest.raises(ConnectionError, match=f"no token from {token_url}: "):
        asyncio.run(ask())


def test_missing_client_certificate_is_explained(kafka: LocalKafka) -> None:
    bare = kafka._own_connection().model_copy(update={"kafka_certificate_file": None, "kafka_key_file": None})
    with pytest.raises(BrokerError, match="asks for a client certificate"):
        Administration(bare, TIMEOUT_S).await_broker()


@pytest.fixture
def elsewhere(kafka: LocalKafka) -> Iterator[str]:
    """An address of this machine that leads to the broker and that its certificate is not for."""

    class Forward(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            host, port = kafka.bootstrap_servers.split(":")
            with socket.create_connection((host, int(port))) as broker:
                back = threading.Thread(target=pass_on, args=(broker, self.request))
                back.start()
                pass_on(self.request, broker)
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.2", 0), Forward) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.2:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def test_certificate_of_other_host_is_refused(kafka: LocalKafka, elsewhere: str) -> None:
    there = kafka.connection("admin").model_copy(update={"bootstrap_servers": elsewhere})
    with pytest.raises(
        BrokerError, match=r"is for another host \(IP address mismatch.*MILLRACE_KAFKA_VERIFY_HOSTNAME=false"
    ):
        Administration(there, TIMEOUT_S).await_broker()
    unchecked = there.model_copy(update={"kafka_verify_hostname": False})
    Administration(unchecked, TIMEOUT_S).await_broker()
