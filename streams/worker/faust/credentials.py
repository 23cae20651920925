"""A connection's TLS and SASL settings as objects of Faust and aiokafka."""

import asyncio
import base64
import json
import ssl
import time
from urllib.error import URLError
from urllib.parse import quote_plus, urlencode
from urllib.request import Request, urlopen

from aiokafka.abc import AbstractTokenProvider
from faust.auth import Credentials, OAuthCredentials, SASLCredentials, SSLCredentials

from schemas.kafka_connection import KafkaConnection

_TOKEN_TIMEOUT_S = 10.0
_RENEW_AT = 0.8
"""Part of a token's lifetime after which the next one is fetched."""


def credentials(connection: KafkaConnection) -> Credentials | None:
    """Return the credentials of Faust's consumer and producer; None on an open listener."""
    context = _ssl_context(connection) if connection.uses_tls else None
    if not connection.uses_sasl:
        return None if context is None else SSLCredentials(context)
    if connection.kafka_sasl_mechanism == "OAUTHBEARER":
        return OAuthCredentials(oauth_cb=ClientCredentials(connection), ssl_context=context)
    return SASLCredentials(
        username=connection.kafka_username,
        password=connection.password,
        mechanism=connection.kafka_sasl_mechanism,
        ssl_context=context,
    )


def _ssl_context(connection: KafkaConnection) -> ssl.SSLContext:
    authority = connection.kafka_ca_file
    context = ssl.create_default_context(cafile=None if authority is None else str(authority))
    context.check_hostname = connection.kafka_verify_hostname
    if connection.kafka_certificate_file is not None:
        password = connection.kafka_key_password
        context.load_cert_chain(
            connection.kafka_certificate_file,
            connection.kafka_key_file,
            None if password is None else password.get_secret_value(),
        )
    return context


class ClientCredentials(AbstractTokenProvider):  # type: ignore[misc]
    """Tokens by OAuth 2.0 client credentials (RFC 6749, section 4.4), kept until they almost expire.

    librdkafka does this itself; aiokafka leaves it to its user.
    """

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._token = ""
        self._renew_at_s = 0.0

    async def token(self) -> str:
        """Return the present token.

        Raises:
            ConnectionError: the endpoint returns none.
        """
        if time.monotonic() >= self._renew_at_s:
            asked_at_s = time.monotonic()
            self._token, life_s = await asyncio.to_thread(self._fetch)
            self._renew_at_s = asked_at_s + _RENEW_AT * life_s
        return self._token

    def _fetch(self) -> tuple[str, float]:
        connection = self._connection
        form = {"grant_type": "client_credentials"}
        if connection.kafka_token_scope is not None:
            form["scope"] = connection.kafka_token_scope
        user, password = quote_plus(connection.kafka_username or ""), quote_plus(connection.password)
        basic = base64.b64encode(f"{user}:{password}".encode()).decode()
        headers = {"Authorization": f"Basic {basic}", "Accept": "application/json"}
        request = Request(str(connection.kafka_token_url), urlencode(form).encode(), headers)
        try:
            with urlopen(request, timeout=_TOKEN_TIMEOUT_S) as response:
                answer = json.load(response)
            return str(answer["access_token"]), float(answer.get("expires_in", 60))
        except (URLError, OSError, ValueError, KeyError, TypeError) as error:
            raise ConnectionError(f"no token from {connection.kafka_token_url}: {error}") from None
