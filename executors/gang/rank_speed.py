"""The duration of a job's steps, as measured on a rank."""

from collections.abc import Sequence
from typing import NamedTuple

from pydantic import ValidationError

from executors.lora.batch import TokenSequence
from schemas.profiles import LEAST_STEP_S, MeasuredSteps, Precision


class RankShare(NamedTuple):
    """The part of a step that a rank computes."""

    micro_batch_size: int
    """Most sequences that it takes at a time."""
    sequences: int
    tokens: int


def rank_share(sequences: Sequence[TokenSequence], micro_batch: int) -> RankShare:
    """Return the size of a share that is computed by micro-batches."""
    tokens = sum(len(sequence.token_ids) for sequence in sequences)
    return RankShare(min(micro_batch, len(sequences)), len(sequences), tokens)


class StepSums:
    """Sums of the steps of a generation since the last report.

    Attributes:
        exchange_s: sum of the exchanges between GPUs; the job's work adds to it.
    """

    def __init__(self, untimed: int) -> None:
        """Begin before the first step; `untimed` is the number of steps that are left out, since the first
        ones warm up."""
        self._untimed = untimed
        self._samples = 0
        self._begin()

    def _begin(self) -> None:
        self.exchange_s = self._step_s = self._loader_s = 0.0
        self._steps = self._sequences = self._tokens = self._micro_batch_size = 0

    def note(self, samples: int, own: RankShare, loader_s: float, step_s: float) -> None:
        """Add a step; one of fewer samples than the others is left out, such as the last one of a job.

        Args:
            samples: samples of all ranks.
            loader_s: time to read the own share.
            step_s: its time besides, waits for other ranks included.
        """
        if self._untimed:
            self._untimed -= 1
            self.exchange_s = 0.0
            return
        self._samples = self._samples or samples
        if samples != self._samples:
            return
        self._micro_batch_size = max(self._micro_batch_size, own.micro_batch_size)
        self._steps += 1
        self._sequences += own.sequences
        self._tokens += own.tokens
        self._loader_s += loader_s
        self._step_s += step_s

    def pop(self, gpus: int, precision: Precision) -> MeasuredSteps | None:
        """Return the mean of the steps, and start the next sums; None without steps to report."""
        if not (self._steps and self._sequences and self._micro_batch_size):
            return None
        step_s = max(self._step_s / self._steps, LEAST_STEP_S)
        try:
            return MeasuredSteps(
                micro_batch_size=self._micro_batch_size,
                step_s=step_s,
                tokens_per_sample=max(self._tokens / self._sequences, 1.0),
                steps=self._steps,
                precision=precision,
                loader_s=self._loader_s / self._steps,
                gpus=gpus,
                samples_per_step=self._samples,
                exchange_s=min(self.exchange_s / self._steps, step_s),
            )
        except ValidationError:
            # A clock that jumps: a measurement is optional.
            return None
        finally:
            self._begin()
