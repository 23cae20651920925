"""The shares of a job's ranks in its batches, by measured speed, and the micro-batches that fit their memory.

Rank 0 decides both for all ranks. Workers that are equally fast keep an even split.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from pydantic import Field, PositiveInt

from executors.gang.batches import share
from executors.gang.group import ProcessGroup, number_of
from schemas.base import Record
from solvers.elastic.batch_shares import batch_shares, step_time, with_each

_FIRST_DECISIONS = (1, 2, 4, 8)
"""Steps of a generation after which its first decisions are due."""
_DECIDED_EVERY = 16
"""Steps between two later decisions."""
_LEAST_GAIN = 0.05
"""Least part of the step time by which other shares must be better."""
_TRIAL_PART = 0.005
"""Most part of the time for steps in which workers without a share are measured again."""
_UNMEASURED_COST = 1_000
"""Cost of a worker before it is measured, over the highest one that is measured."""


class KnownWorkers(Record):
    """Knowledge of a job's workers, kept in its checkpoints: digests are written as decimals."""

    sequence_ns: dict[str, PositiveInt] = Field(default_factory=dict)
    """Time of a sequence by worker (ns)."""
    micro_batches: dict[str, PositiveInt] = Field(default_factory=dict)
    """Most sequences at a time by GPU type, where memory was too small for the job's own."""


class BatchShares:
    """The shares of all ranks in a batch, the same on all of them.

    Attributes:
        counts: sequences of each rank in a whole batch; empty before the first decision.
        micro_batch: most sequences that this rank takes at a time.
        known: knowledge of workers, complete on rank 0.
    """

    def __init__(self, worker: str, gpu_type: str, micro_batch: int) -> None:
        self.counts: list[int] = []
        self.micro_batch = self._own_micro_batch = micro_batch
        self.known = KnownWorkers()
        self._worker, self._gpu_type = number_of(worker.encode()), number_of(gpu_type.encode())
        self._sequence_ns = 0
        """Own time of a sequence; 0 before it is measured."""
        self._window_ns = self._window_sequences = 0
        self._steps = self._tried_at = 0
        self._is_trying = False

    def places(self, sequences: int, rank: int, world: int) -> range:
        """Return the places of a rank in a batch: neighbours, in the order of the ranks.

        A smaller batch, the last one of a job, lacks the places at the end.
        """
        if len(self.counts) != world:
            return share(sequences, rank, world)
        start = sum(self.counts[:rank])
        return range(min(start, sequences), min(start + self.counts[rank], sequences))

    @contextmanager
    def measured(self, sequences: int, device: torch.device) -> Iterator[None]:
        """Measure the time of this rank's own share of a step, in the block."""
        began_ns = time.monotonic_ns()
        yield
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self._window_ns += time.monotonic_ns() - began_ns
        self._window_sequences += sequences

    def begin(self, group: ProcessGroup, batch_of: Callable[[Sequence[int]], int]) -> None:
        """Decide the shares of a new generation, with all ranks, by the known speeds of its workers.

        Args:
            batch_of: returns the sequences of a batch, by the costs of a sequence on the ranks (ns). That of
                rank 0 counts.
        """
        self._steps = self._tried_at = 0
        self.counts, self._is_trying = [], False
        self._decide(group, batch_of)

    def end_step(self, group: ProcessGroup) -> None:
        """Decide the shares of the next steps, with all ranks, if a decision is due."""
        self._steps += 1
        if self._is_trying or self._steps in _FIRST_DECISIONS or self._steps % _DECIDED_EVERY == 0:
            self._decide(group, lambda _: self.batch)

    @property
    def batch(self) -> int:
        """Sequences in a whole batch, once its shares are decided."""
        return sum(self.counts)

    def shrink(self) -> bool:
        """Halve the micro-batch; return False if it is one sequence already."""
        if self.micro_batch == 1:
            return False
        self.micro_batch //= 2
        return True

    def _decide(self, group: ProcessGroup, batch_of: Callable[[Sequence[int]], int]) -> None:
        self._note_window()
        shrunk = self.micro_batch if self.micro_batch < self._own_micro_batch else 0
        mine = [self._worker, self._sequence_ns, self._gpu_type, shrunk]
        rows = group.gather("the speeds of the ranks", mine)
        for worker, sequence_ns, gpu_type, micro_batch in rows:
            if sequence_ns:
                self.known.sequence_ns[str(worker)] = sequence_ns
            if micro_batch:
                least = self.known.micro_batches.get(str(gpu_type), micro_batch)
                self.known.micro_batches[str(gpu_type)] = min(least, micro_batch)
        micro_batches = [self.known.micro_batches.get(str(row[2]), self._own_micro_batch) for row in rows]
        times_ns = [self.known.sequence_ns.get(str(row[0]), 0) for row in rows]
        counts, is_trial = self._chosen(times_ns, batch_of(_estimated(times_ns)))
        decided = torch.tensor([*counts, is_trial, *micro_batches])
        group.spread("the shares of a batch", [decided], 0)
        world, numbers = group.world, decided.tolist()
        self.counts, self._is_trying = numbers[:world], bool(numbers[world])
        self.micro_batch = numbers[world + 1 :][group.rank]
        if self._is_trying:
            self._tried_at = self._steps

    def _chosen(self, times_ns: Sequence[int], batch: int) -> tuple[list[int], bool]:
        """Return the shares of the next steps, and whether they are a trial of one step; those of rank 0
        count.

        Among workers of known speed, a worker of unknown speed begins with one sequence. If it is slow, the
        delay is that of one sequence.

        Args:
            times_ns: time of a sequence by rank; 0 where it is unknown.
        """
        world = len(times_ns)
        even = [len(share(batch, rank, world)) for rank in range(world)]
        if not any(times_ns):
            return even, False
        costs = [each or _UNMEASURED_COST * max(times_ns) for each in times_ns]
        best = batch_shares(batch, costs)
        trial = with_each(best)
        if trial != best and (0 in times_ns or self._is_trial_due(best, costs)):
            return trial, True
        present = self.counts if self.batch == batch and not self._is_trying else even
        return (present if step_time(present, costs) <= _longest_kept(best, costs) else best), False

    def _is_trial_due(self, best: Sequence[int], costs: Sequence[int]) -> bool:
        """Return whether the time since the last trial is long against that of a sequence on each worker."""
        waited_ns = (self._steps - self._tried_at) * step_time(best, costs)
        return _TRIAL_PART * waited_ns >= max(costs)

    def note_speed(self, sequence_ns: int) -> None:
        """Update the own time of a sequence by a newer one (ns)."""
        self._sequence_ns = ((self._sequence_ns or sequence_ns) + sequence_ns + 1) // 2

    def _note_window(self) -> None:
        """Note the time of a sequence in the steps since the last decision."""
        if self._window_sequences:
            self.note_speed(max(self._window_ns // self._window_sequences, 1))
        self._window_ns = self._window_sequences = 0


def _estimated(times_ns: Sequence[int]) -> list[int]:
    """Return times of a sequence by rank: the mean of the others where it is unknown."""
    measured_ns = [each for each in times_ns if each]
    mean_ns = sum(measured_ns) // len(measured_ns) if measured_ns else 1
    return [each or mean_ns for each in times_ns]


def _longest_kept(best: Sequence[int], costs: Sequence[int]) -> float:
    """Return the longest step at which present shares are kept although others would be better. It is at most
    the step without the slowest worker, which an even split among many workers may exceed."""
    longest = step_time(best, costs) / (1 - _LEAST_GAIN)
    fewer = sorted(costs)[:-1]
    return min(longest, step_time(batch_shares(sum(best), fewer), fewer)) if fewer else longest
