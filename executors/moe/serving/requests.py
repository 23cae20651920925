"""Requests to a service: prompts of a file, as they arrive."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from executors.lora.batch import TextSequence
from executors.lora.record_fields import as_object, listed, required_text
from executors.lora.tokens import Tokenizer, ending, tokens_of
from schemas.experts.workload import Requests

_BLOCK = 1_024


@dataclass(frozen=True)
class Prompt:
    """One request."""

    text: str

    def tokenize(self, tokenizer: Tokenizer, sequence_length: int) -> TextSequence:
        """Its last `sequence_length` tokens; no loss is taken of them.

        Raises:
            ValueError: it has no token.
        """
        tokens = tokens_of(tokenizer, ending(self.text, sequence_length))[-sequence_length:]
        if not tokens:
            raise ValueError("a prompt without a token cannot be answered")
        return TextSequence(tokens, len(tokens))


@dataclass(frozen=True)
class Prompts:
    """Lines with a `prompt` or a `text`; whatever else they have is not looked at. See `RecordForm`."""

    key: str = "prompt"

    def parse(self, fields: object) -> Prompt:
        """See `RecordForm`."""
        given = as_object(fields, '{"prompt": ...}')
        for name in ("prompt", "text"):
            if name in given:
                return Prompt(required_text(given, name))
        raise ValueError(f'expected {{"prompt": ...}} or {{"text": ...}}; the fields are: {listed(given)}')


class Arrivals:
    """When requests arrive: a Poisson process that the seed alone decides."""

    def __init__(self, rate_per_s: float, seed: int, first: int) -> None:
        """
        Args:
            first: the request with which the service begins; those before it are over.
        """
        # A number for each request, however it is drawn: so those before the first can be skipped.
        bits = np.random.PCG64(seed)
        bits.advance(first)
        self._draws = np.random.Generator(bits)
        self._rate_per_s = rate_per_s
        self._last_s = 0.0
        self._times_s: list[float] = []
        self._offset = first

    def time_s(self, request: int) -> float:
        """When a request arrives, since the service began.

        Args:
            request: by number, none that is forgotten.
        """
        while request - self._offset >= len(self._times_s):
            gaps_s = -np.log1p(-self._draws.random(_BLOCK)) / self._rate_per_s
            times_s = self._last_s + np.cumsum(gaps_s)
            self._last_s = float(times_s[-1])
            self._times_s.extend(times_s.tolist())
        return self._times_s[request - self._offset]

    def forget(self, before: int) -> None:
        """Requests before this one will not be asked for again."""
        del self._times_s[: before - self._offset]
        self._offset = before


class AtOnce:
    """All requests are there from the beginning: the next batch comes when the last is done."""

    def time_s(self, request: int) -> float:
        """See `Arrivals`."""
        del request
        return -math.inf

    def forget(self, before: int) -> None:
        """See `Arrivals`."""


StepWord = Literal["wait", "serve", "over"]


@dataclass(frozen=True)
class Step:
    """Next step of a service.

    Attributes:
        word: `serve` a batch, `wait` for a request, or it is `over`.
        count: requests of the batch.
        wait_s: until something may have changed.
    """

    word: StepWord
    count: int = 0
    wait_s: float = 0.0


class Schedule:
    """Which requests make the next batch. Time is told."""

    def __init__(
        self, requests: Requests, total: int | None, batch_size: int, first: int, begin_s: float
    ) -> None:
        """
        Args:
            total: after so many it is over; None where only the time ends it.
            first: the request with which the service begins.
            begin_s: when it begins, Unix time.
        """
        self._until_s = math.inf if requests.until_s is None else requests.until_s
        self._total = total
        self._batch_size = batch_size
        self._begin_s = begin_s
        self._rate_per_s = requests.rate_per_s
        self._arrivals = (
            AtOnce() if requests.rate_per_s is None else Arrivals(requests.rate_per_s, requests.seed, first)
        )

    def step(self, done: int, now_s: float) -> Step:
        """Return the step after a number of requests.

        Args:
            now_s: Unix time.
        """
        self._arrivals.forget(done)
        left = self._batch_size if self._total is None else min(self._batch_size, self._total - done)
        if left <= 0 or now_s >= self._until_s:
            return Step("over")
        count = 0
        while count < left and self._arrives_s(done + count) <= now_s:
            count += 1
        if count:
            return Step("serve", count)
        return Step("wait", wait_s=min(self._arrives_s(done), self._until_s) - now_s)

    def waited_s(self, requests: Sequence[int], now_s: float) -> list[float]:
        """Since the arrival of each; empty where requests do not arrive by a rate."""
        if self._rate_per_s is None:
            return []
        return [now_s - self._arrives_s(request) for request in requests]

    def _arrives_s(self, request: int) -> float:
        return self._begin_s + self._arrivals.time_s(request)
