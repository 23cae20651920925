"""Training of a job whose ranks all hold its whole state."""

from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from executors.gang.checkpoints import State
from executors.gang.group import ProcessGroup
from executors.gang.training import GangTraining, Order, Share
from executors.lora.adapter import refuse_unfit_tensors


class ReplicatedTraining(GangTraining[Order, Share]):
    """A job whose ranks each hold the whole state between two steps, the same on all."""

    @abstractmethod
    def tensors(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Return the state by the name of its file and by its own name, without a copy: writing to a tensor
        changes the state."""

    def collect(self, group: ProcessGroup | None) -> State | None:  # noqa: ARG002 -- each rank has the whole
        return {
            file: {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
            for file, tensors in self.tensors().items()
        }

    def restore(self, group: ProcessGroup, state: State | None) -> None:
        if state is not None:
            self._load(state)
        self.spread(group, 0)

    def spread(self, group: ProcessGroup, source: int) -> None:
        tensors = [each for file in self.tensors().values() for each in file.values()]
        group.spread("the state of the job", tensors, source)

    def _load(self, state: State) -> None:
        mine = _flat(self.tensors())
        given = _flat(state)
        refuse_unfit_tensors("model", mine, given)
        with torch.no_grad():
            for name, tensor in mine.items():
                tensor.copy_(given[name])


def _flat(state: State) -> dict[str, Tensor]:
    return {name: tensor for tensors in state.values() for name, tensor in tensors.items()}
