"""Answers of a service: for a language model the next tokens, for a classifier the classes."""

import json
from collections import deque
from collections.abc import Callable, Sequence

from executors.gang.shares import share

MOST_KEPT = 1_000


class NewestAnswers:
    """Last `MOST_KEPT` answers, since a service may run forever."""

    def __init__(self, word_of: Callable[[int], str]) -> None:
        """
        Args:
            word_of: returns the word or class with a number.
        """
        self._word_of = word_of
        self._kept: deque[tuple[int, int]] = deque(maxlen=MOST_KEPT)

    def add(self, requests: range, numbers: Sequence[Sequence[int]]) -> None:
        """Add the answers of one batch.

        Args:
            numbers: by rank, answers to its share in order; padding after them is ignored.
        """
        for rank, row in enumerate(numbers):
            for place, number in zip(share(len(requests), rank, len(numbers)), row, strict=False):
                self._kept.append((requests[place], number))

    def lines(self) -> bytes:
        """Return JSONL, in the order of the requests."""
        lines = (
            json.dumps({"request": request, "answer": number, "text": self._word_of(number)}) + "\n"
            for request, number in self._kept
        )
        return "".join(lines).encode()
