"""Sample paths of a training's last steps, for the services of its model (thesis, section 4.5.2; erratum I4).

The thesis profiles "when the load balancing loss is minimized and becomes stable". Here these are at most 128
steps of the last quarter of the work. They last while the mean balance loss of eight steps differs by at most
5 % from the mean of the eight steps before. If it differs by more, the paths until then are dropped.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from numpy.typing import NDArray
from safetensors.numpy import load, save
from torch import Tensor

from executors.gang.group import ProcessGroup
from executors.moe.block import LayerPass
from executors.moe.conversion.sample_paths import bounded_profile
from schemas.experts.workload import PUBLISHED_PATH_LENGTH, MoeTrainWorkload
from solvers.experts.paths import PathProfile

_LAST_PART = 4
_MOST_STEPS = 128
_WINDOW_STEPS = 8
_MOST_CHANGE = 0.05
_MOST_TOKENS = 8_192
"""Most tokens of a rank in a step that are counted, spread evenly over its tokens."""


class TrainedPaths:
    """Collects the paths of one rank's tokens; `collect` adds up those of all."""

    def __init__(self, workload: MoeTrainWorkload, layers: int, experts: int) -> None:
        """Start without paths.

        Args:
            layers: number of layers with experts.
            experts: number of experts of each layer.
        """
        work, batch = workload.work_samples, workload.hyperparameters.global_batch_size
        self._first_sample = work - min(work // _LAST_PART, _MOST_STEPS * batch)
        self._size = (experts, layers, PUBLISHED_PATH_LENGTH)
        self._balance: deque[float] = deque(maxlen=2 * _WINDOW_STEPS)
        self._profile = bounded_profile(*self._size)

    def add(self, samples_done: int, passes: Sequence[LayerPass], balance: float) -> None:
        """Add a step.

        Args:
            samples_done: samples trained before it.
            passes: passes of this rank's share, layer by layer; empty without samples. Those of an encoder
                and a decoder, whose tokens share no path, are not counted.
            balance: balance loss of the whole batch, the same on all ranks.
        """
        self._balance.append(balance)
        is_stable = self._is_stable()
        if is_stable is False:
            self._profile = bounded_profile(*self._size)
        if not is_stable or samples_done < self._first_sample:
            return
        chosen = [each.routing.first_expert for each in passes]
        if len({len(tokens) for tokens in chosen}) == 1:
            every = -(-len(chosen[0]) // _MOST_TOKENS) or 1
            selections = torch.stack([tokens[::every] for tokens in chosen], dim=1)
            self._profile.add(selections.cpu().numpy())

    def collect(self, group: ProcessGroup) -> dict[str, Tensor] | None:
        """Return the paths of all ranks on rank 0, as tensors for `load`; None elsewhere. All ranks must do
        so at the same time. From then on, rank 0 has those of all ranks."""
        where = "collecting sample paths"
        content = save(self._profile.arrays())
        sizes = [size for (size,) in group.gather(where, [len(content)])]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        parts = group.collect(where, padded, range(group.world))
        if parts is None:
            self._profile = bounded_profile(*self._size)
            return None
        for part, size in zip(parts[1:], sizes[1:], strict=True):
            self._profile.merge(self._of_arrays(load(part[:size].numpy().tobytes())))
        return {name: torch.from_numpy(array.copy()) for name, array in self._profile.arrays().items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from the tensors of `collect`, on rank 0; without any, from none.

        Raises:
            ValueError: they are of another model.
        """
        if tensors:
            self._profile = self._of_arrays({name: each.numpy() for name, each in tensors.items()})

    def profile_of(self, tensors: Mapping[str, Tensor]) -> PathProfile | None:
        """Return the profile in the tensors of `collect`; None without tokens."""
        profile = self._of_arrays({name: each.numpy() for name, each in tensors.items()})
        return profile if profile.tokens else None

    def _of_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> PathProfile:
        return PathProfile.of_arrays(arrays, *self._size, self._profile.most_paths)

    def _is_stable(self) -> bool | None:
        """Return whether the balance loss is stable; None before there are two windows of it."""
        losses = list(self._balance)
        if len(losses) < 2 * _WINDOW_STEPS:
            return None
        before, now = fmean(losses[:_WINDOW_STEPS]), fmean(losses[_WINDOW_STEPS:])
        return abs(now - before) <= _MOST_CHANGE * before
