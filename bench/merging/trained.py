"""Merges of tasks of real text, trained beforehand by `train_pairs` on two small base models.

`trained_pairs.json` has what a zone measures of such jobs: losses and embeddings of profile runs, and
accuracies of each job alone and merged. So both estimators run on them whole, with Eqs. 2 to 4 and scores.
"""

from pathlib import Path

from schemas.base import Record
from schemas.merging.estimates import MergeMode

TRAINED_PAIRS = Path(__file__).with_name("trained_pairs.json")
EVALUATIONS_PER_EPOCH = 2
EPOCHS = 6


class TrainedTask(Record):
    """A task, trained alone."""

    name: str
    samples: int
    batch_size: int
    losses: tuple[float, ...]
    """Training losses of the first iterations, as a profile run has them."""
    embedding: tuple[float, ...]
    """Fisher information (Task2Vec)."""
    iterations: tuple[int, ...]
    """Iterations before each evaluation; the first is before training."""
    accuracies: tuple[float, ...]
    """Accuracy of each evaluation."""

    @property
    def iterations_per_epoch(self) -> int:
        return -(-self.samples // self.batch_size)

    @property
    def target(self) -> float:
        """Best accuracy alone."""
        return max(self.accuracies)

    @property
    def needed(self) -> int:
        """Iterations until then, 1 at least."""
        return max(self.iterations[self.accuracies.index(self.target)], 1)


class TrainedMerge(Record):
    """A merge, from its receiver's side; a spatial one has two."""

    mode: MergeMode
    donor: str
    receiver: str
    iterations: tuple[int, ...]
    """Iterations of the receiver in the merge before each evaluation."""
    accuracies: tuple[float, ...]
    """Accuracy of the receiver at each evaluation."""

    def needed(self, target: float) -> int | None:
        """Return the iterations until a target is met, 1 at least; None if it never is."""
        pairs = zip(self.iterations, self.accuracies, strict=True)
        return next((max(done, 1) for done, accuracy in pairs if accuracy >= target), None)


class TrainedBackbone(Record):
    """All tasks and pairs on one base model."""

    model: str
    parameters: int
    tasks: tuple[TrainedTask, ...]
    merges: tuple[TrainedMerge, ...]


class TrainedPairs(Record):
    """The content of the file."""

    seed: int
    backbones: tuple[TrainedBackbone, ...]


def read_trained(path: Path = TRAINED_PAIRS) -> TrainedPairs:
    """Read the trained pairs.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: it has another form.
    """
    return TrainedPairs.model_validate_json(path.read_bytes())
