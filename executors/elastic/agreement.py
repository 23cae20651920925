"""The state from which a new generation trains on: all processes take the newest that one of them holds."""

from collections.abc import Sequence

import torch

from executors.elastic.group import Group, Standing
from executors.elastic.training import Trainer
from executors.lora.dataset import DatasetError

_DIGEST_DIGITS = 15
"""Hexadecimal digits of a digest that fit a signed 64-bit integer."""


def compare_states(
    group: Group, trainer: Trainer, *, holds_state: bool, saved_samples: int
) -> list[Standing]:
    """Exchange the standings of all processes, and return them by rank.

    Args:
        holds_state: whether the trainer has a state that others may take over.
        saved_samples: of the newest checkpoint, as far as this process knows.

    Raises:
        DatasetError: the processes read different datasets.
        PeerLostError: one does not answer.
    """
    standings = group.compare(
        Standing(
            samples_done=trainer.samples_done if holds_state else -1,
            saved_samples=saved_samples,
            data_digest=int(trainer.dataset.digest[:_DIGEST_DIGITS], 16),
        )
    )
    if len({standing.data_digest for standing in standings}) > 1:
        raise DatasetError(f"{trainer.dataset.name}: differs between the nodes of the job")
    return standings


def spread_state(group: Group, trainer: Trainer, standings: Sequence[Standing], saved_samples: int) -> int:
    """Copy the state of the first rank that has the newest to all; of rank 0 if none has any.

    Args:
        saved_samples: of the newest checkpoint, on the rank whose state is copied.

    Returns:
        that rank's `saved_samples`.

    Raises:
        PeerLostError: a process does not answer.
    """
    held = [standing.samples_done for standing in standings]
    source = held.index(max(held))
    loss = float("nan") if trainer.loss is None else trainer.loss
    place = torch.tensor([trainer.samples_done, saved_samples, loss], dtype=torch.float64)
    group.spread([place], source)
    samples_done, saved, loss = place.tolist()
    group.spread(trainer.tensors().values(), source)
    trainer.move_to(int(samples_done), None if loss != loss else loss)
    return int(saved)
