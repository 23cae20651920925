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
        """Return its last `sequence_length` tokens; they bear no loss.

        Raises:
            ValueError: it has no token.
        """
        tokens = tokens_of(tokenizer, ending(self.text, sequence_length))[-sequence_length:]
        if not tokens:
            raise ValueError("a prompt without a token cannot be answered")
        return TextSequence(tokens, len(tokens))


@dataclass(frozen=True)
class Prompts:
    """Lines with a `prompt` or a `text`; other fields are ignored. See `RecordForm`."""

    key: str = "prompt"

    def parse(self, fields: object) -> Prompt:
        given = as_object(fields, '{"prompt": ...}')
        for name in ("prompt", "text"):
            if name in given:
                return Prompt(required_text(given, name))
        raise ValueError(f'expected {{"prompt": ...}} or {{"text": ...}}; the fields are: {listed(given)}')


class Arrivals:
    """Arrival times of requests: a Poisson process that depends only on the seed."""

    def __init__(self, rate_per_s: float, seed: int, first: int) -> None:
        """
        Args:
            first: first request of the service; those before it are over.
        """
        # One random number per request, so that those before the first can be skipped.
        bits = np.random.PCG64(seed)
        bits.advance(first)
        self._draws = np.random.Generator(bits)
        self._rate_per_s = rate_per_s
        self._last_s = 0.0
        self._times_s: list[float] = []
        self._offset = first

    def time_s(self, request: int) -> float:
        """Return the arrival time of a request since the start of the service.

        Args:
            request: its number, of a request that is not dropped.
        """
        while request - self._offset >= len(self._times_s):
            gaps_s = -np.log1p(-self._draws.random(_BLOCK)) / self._rate_per_s
            times_s = self._last_s + np.cumsum(gaps_s)
            self._last_s = float(times_s[-1])
            self._times_s.extend(times_s.tolist())
        return self._times_s[request - self._offset]

    def forget(self, before: int) -> None:
        """Drop the requests before a number."""
        del self._times_s[: before - self._offset]
        self._offset = before


class AtOnce:
    """Requests that are all there from the beginning: each batch follows the one before."""

    def time_s(self, request: int) -> float:
        del request
        return -math.inf

    def forget(self, before: int) -> None:
        """See `Arrivals`."""


StepWord = Literal["wait", "serve", "over"]


@dataclass(frozen=True)
class ServiceStep:
    """Next step of a service.

    Attributes:
        word: `serve` a batch, `wait` for a request, or `over`.
        count: requests of the batch.
        wait_s: longest wait until the next step.
    """

    word: StepWord
    count: int = 0
    wait_s: float = 0.0


class BatchSchedule:
    """Composition of batches from requests. Times are arguments."""

    def __init__(
        self, requests: Requests, total: int | None, batch_size: int, first: int, begin_s: float
    ) -> None:
        """
        Args:
            total: number of requests after which it is over; None if only the time ends it.
            first: first request of the service.
            begin_s: start of the service, Unix time.
        """
        self._until_s = math.inf if requests.until_s is None else requests.until_s
        self._total = total
        self._batch_size = batch_size
        self._begin_s = begin_s
        self._rate_per_s = requests.rate_per_s
        self._arrivals = (
            AtOnce() if requests.rate_per_s is None else Arrivals(requests.rate_per_s, requests.seed, first)
        )

    def step(self, done: int, now_s: float) -> ServiceStep:
        """Return the step after a number of requests.

        Args:
            now_s: Unix time.
        """
        self._arrivals.forget(done)
        left = self._batch_size if self._total is None else min(self._batch_size, self._total - done)
        if left <= 0 or now_s >= self._until_s:
            return ServiceStep("over")
        count = 0
        while count < left and self._arrives_s(done + count) <= now_s:
            count += 1
        if count:
            return ServiceStep("serve", count)
        return ServiceStep("wait", wait_s=min(self._arrives_s(done), self._until_s) - now_s)

    def waited_s(self, requests: Sequence[int], now_s: float) -> list[float]:
        """Return the times since the arrival of requests; empty for requests without a rate."""
        if self._rate_per_s is None:
            return []
        return [now_s - self._arrives_s(request) for request in requests]

    def _arrives_s(self, request: int) -> float:
        return self._begin_s + self._arrivals.time_s(request)
