"""What a service has answered: of a language model the next token, of a classifier the class."""

import json
from collections import deque
from collections.abc import Callable, Sequence

from executors.gang.shares import share

MOST_KEPT = 1_000


class NewestAnswers:
    """The last `MOST_KEPT`, for a service may go on for ever."""

    def __init__(self, word_of: Callable[[int], str]) -> None:
        """
        Args:
            word_of: what a number stands for.
        """
        self._word_of = word_of
        self._kept: deque[tuple[int, int]] = deque(maxlen=MOST_KEPT)

    def add(self, requests: range, numbers: Sequence[Sequence[int]]) -> None:
        """Take those of one batch.

        Args:
            numbers: by rank, of its share in its order; what comes after them does not count.
        """
        for rank, row in enumerate(numbers):
            for place, number in zip(share(len(requests), rank, len(numbers)), row, strict=False):
                self._kept.append((requests[place], number))

    def lines(self) -> bytes:
        """JSONL, in the order of the requests."""
        lines = (
            json.dumps({"request": request, "answer": number, "text": self._word_of(number)}) + "\n"
            for request, number in self._kept
        )
        return "".join(lines).encode()
