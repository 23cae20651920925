"""Transfer between tasks, measured by training: tasks of real text on the default base, alone and after each
other.

The tasks are cut from packages of Python's standard library, which the base model was not trained on (its
text is of the modules outside of packages). Training and measurement are the tuner's own code. A merge is
temporal: the receiver starts from the weights with which the donor met its target, with a new optimizer.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TypeVar

import torch
from torch.nn.functional import cross_entropy

from bench.merging.leep import leep
from executors.lora.adapted_pass import adapters_placed, loss_logits
from executors.lora.base_model import load_base
from executors.lora.batch import TokenSequence, pack
from executors.lora.dataset import DatasetRoot
from executors.lora.lora_task import AdapterState
from executors.lora.shared_base import SharedBase
from executors.processes.threads import one_thread
from executors.tuner.checkpoints import fresh_from
from executors.tuner.data import Loaders, SharedTokenizer
from executors.tuner.embedding import embed, mean_features, source_predictions
from executors.tuner.opening import TrainingJob, adapter_for, open_job
from executors.tuner.settings import TunerSettings
from executors.tuner.training import InUse, Sample, Trainer
from infra.demo.data import pieces, write_task
from schemas.lora import Dataset
from schemas.merging.commands import JobOrder
from schemas.merging.workload import TrainingTarget, TuningHyperparameters, TuningWorkload
from solvers.merging.transferability import Embedding, Task2Feat, Task2Vec, Transferability

TEXTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "code pages": ("encodings/cp*.py",),
        "more code pages": ("encodings/iso8859*.py", "encodings/mac_*.py"),
        "asyncio": ("asyncio/*.py",),
        "multiprocessing": ("multiprocessing/*.py",),
        "email": ("email/*.py",),
        "web": ("http/*.py", "urllib/*.py"),
        "entities": ("html/entities.py",),
        "help topics": ("pydoc_data/topics.py",),
        "importlib": ("importlib/*.py",),
    }
)
"""Modules of each task: two tables of character sets, two pairs of related programs, and three unlike all
others."""
METRICS = ("task2vec", "task2feat", "leep")
MOST_OF_ALONE = 2
"""Limit of a merged job, relative to the iterations that all have alone; one that does not end counts with
it."""
_ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_CPU = torch.device("cpu")

Pair = tuple[str, str]
"""Donor and receiver."""
K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


@dataclass(frozen=True)
class TransferExtent:
    """Amount of training and measurement."""

    tasks: tuple[str, ...]
    """Names in `TEXTS`."""
    records: int
    """Training records of each task."""
    validation_records: int
    iterations: int
    """Iterations of each task alone; the lowest validation loss in them is its target."""
    interval: int
    """Iterations from one measurement of the validation loss to the next."""
    scored_records: int
    """Records for a task's embedding and for a donor's predictions: a zone's `fisher_samples`."""
    batch_size: int = 8
    sequence_length: int = 64


FULL = TransferExtent(
    tasks=tuple(TEXTS), records=240, validation_records=40, iterations=40, interval=4, scored_records=128
)
QUICK = TransferExtent(
    tasks=("code pages", "more code pages", "asyncio", "multiprocessing"),
    records=80,
    validation_records=16,
    iterations=8,
    interval=2,
    scored_records=16,
    batch_size=4,
    sequence_length=48,
)


@dataclass(frozen=True)
class PairScores:
    """Scores of one metric."""

    of: Mapping[Pair, float]
    """Score by pair; larger if the donor is expected to help more."""
    scoring_s: float
    """Longest computation: of a task's embedding, or of a pair if it is computed by pair."""
    profiling_s: float
    """Longest computation from the base model on: with the training of the donor, if necessary."""


@dataclass(frozen=True)
class MeasuredTransfers:
    """Measurements of some tasks."""

    alone: Mapping[str, int]
    """Iterations that each task needs for its target."""
    merged: Mapping[Pair, int]
    """Iterations that the receiver needs for its target after the donor."""
    scores: Mapping[str, PairScores]
    """Scores of the same pairs, by metric."""


@dataclass(frozen=True)
class _Donor:
    """A task that was trained alone, at its target."""

    iterations: int
    loss: float
    state: AdapterState
    training_s: float


def measure_transfers(extent: TransferExtent, seed: int) -> MeasuredTransfers:
    """Train each task alone and each pair of them, and score each pair, on one thread of the CPU.

    Equal seeds yield equal iterations and scores on a machine.
    """
    with one_thread(), TemporaryDirectory() as name:
        return _Transfers(Path(name), extent, seed).measure()


class _Transfers:
    def __init__(self, folder: Path, extent: TransferExtent, seed: int) -> None:
        self._extent = extent
        self._base = load_base()
        settings = TunerSettings(dataset_root=folder)
        loaders = Loaders(DatasetRoot(folder), SharedTokenizer(self._base.tokenizer), settings)
        self._jobs = {name: _open(name, folder, extent, seed, self._base, loaders) for name in extent.tasks}

    def measure(self) -> MeasuredTransfers:
        try:
            donors = {name: self._trained_alone(job) for name, job in self._jobs.items()}
            pairs = list(permutations(self._jobs, 2))
            merged = {(a, b): self._iterations_after(donors[a], b, donors[b].loss) for a, b in pairs}
            scores = {**self._by_embeddings(pairs), "leep": self._by_predictions(pairs, donors)}
            return MeasuredTransfers(
                {name: donor.iterations for name, donor in donors.items()}, merged, scores
            )
        finally:
            for job in self._jobs.values():
                job.loader.close()

    def _trained_alone(self, job: TrainingJob) -> _Donor:
        best: _Donor | None = None
        trainer, training_s = _trainer(job, None), 0.0
        for done in range(0, self._extent.iterations, self._extent.interval):
            started_s = time.monotonic()
            self._train(job, trainer, done)
            training_s += time.monotonic() - started_s
            loss = self._validation_loss(job, trainer)
            if best is None or loss < best.loss:
                iterations = done + self._extent.interval
                best = _Donor(iterations, loss, trainer.adapter.state(), training_s)
        assert best is not None, "there is an interval"
        return best

    def _iterations_after(self, donor: _Donor, receiver: str, target: float) -> int:
        job = self._jobs[receiver]
        trainer = _trainer(job, fresh_from(donor.state, job.layout))
        most, interval = MOST_OF_ALONE * self._extent.iterations, self._extent.interval
        for done in range(0, most, interval):
            self._train(job, trainer, done)
            if self._validation_loss(job, trainer) <= target:
                return done + interval
        return most

    def _train(self, job: TrainingJob, trainer: Trainer, done: int) -> None:
        """Train for one interval."""
        for number in range(done, done + self._extent.interval):
            records = job.loader.stream.indices(number * job.batch_size, job.batch_size)
            batch = [Sample(place, 0, job.loader.training[record]) for place, record in enumerate(records)]
            trainer.step(batch, number, 1, (), lambda _: None)

    def _validation_loss(self, job: TrainingJob, trainer: Trainer) -> float:
        """Return the mean loss of a token. The accuracy of so small a model moves in steps too large for a
        target."""
        validation = job.loader.validation
        assert validation is not None, "each task has some"
        loss, tokens = 0.0, 0
        for start in range(0, len(validation), job.batch_size):
            some = [validation[i] for i in range(start, min(start + job.batch_size, len(validation)))]
            batch = pack([some], trainer.device)
            with torch.no_grad(), adapters_placed(trainer.base, [InUse(trainer.adapter)], batch):
                logits = loss_logits(trainer.base, batch).float()
                loss += float(cross_entropy(logits, batch.labels, reduction="sum"))
            tokens += len(batch.labels)
        return loss / tokens

    def _scored(self, name: str) -> list[TokenSequence]:
        """Return a task's records for scores, as in a profile run."""
        loader = self._jobs[name].loader
        return [loader.training[i] for i in loader.stream.indices(0, self._extent.scored_records)]

    def _by_embeddings(self, pairs: Sequence[Pair]) -> dict[str, PairScores]:
        records = {name: self._scored(name) for name in self._jobs}
        fisher, fisher_s = _timed(records, lambda some: embed(self._base, some, float("inf")).fisher)
        features, features_s = _timed(records, lambda some: mean_features(self._base, some))
        metrics: dict[str, tuple[Transferability, Mapping[str, Embedding], float]] = {
            "task2vec": (Task2Vec(), fisher, max(fisher_s.values())),
            "task2feat": (Task2Feat(), features, max(features_s.values())),
        }
        return {
            name: PairScores({(a, b): metric.score(of[a], of[b]) for a, b in pairs}, longest_s, longest_s)
            for name, (metric, of, longest_s) in metrics.items()
        }

    def _by_predictions(self, pairs: Sequence[Pair], donors: Mapping[str, _Donor]) -> PairScores:
        records = {name: self._scored(name) for name in self._jobs}
        trained = {name: _trainer(self._jobs[name], donor.state) for name, donor in donors.items()}

        def score(pair: Pair) -> float:
            probabilities, labels = source_predictions(trained[pair[0]], records[pair[1]])
            return leep(probabilities.numpy(), labels.numpy())

        scores, durations_s = _timed({pair: pair for pair in pairs}, score)
        with_training_s = (donors[pair[0]].training_s + each for pair, each in durations_s.items())
        return PairScores(scores, max(durations_s.values()), max(with_training_s))


def _timed(inputs: Mapping[K, V], compute: Callable[[V], T]) -> tuple[dict[K, T], dict[K, float]]:
    """Return the result of each input, and its time in seconds."""
    found, durations_s = {}, {}
    for key, value in inputs.items():
        started_s = time.monotonic()
        found[key] = compute(value)
        durations_s[key] = time.monotonic() - started_s
    return found, durations_s


def _open(
    name: str, folder: Path, extent: TransferExtent, seed: int, base: SharedBase, loaders: Loaders
) -> TrainingJob:
    """Write a task's data, and open its job."""
    file = name.replace(" ", "-")
    texts = pieces(TEXTS[name], seed)[: extent.records + extent.validation_records]
    write_task(folder, file, texts, extent.validation_records)
    workload = TuningWorkload(
        model="base",
        dataset=Dataset(path=f"{file}.jsonl", samples=extent.records),
        validation_path=f"{file}-validation.jsonl",
        hyperparameters=TuningHyperparameters(
            # High, and on every layer, so that a task learns visibly in so few iterations.
            target_modules=_ADAPTED,
            learning_rate=5e-3,
            batch_size=extent.batch_size,
            sequence_length=extent.sequence_length,
            seed=seed,
        ),
        target=TrainingTarget(most_iterations=MOST_OF_ALONE * extent.iterations),
    )
    order = JobOrder(run_id=f"{file}/1", job_id=file, user="u", workload=workload, resume_iterations=0)
    return open_job(order, base, loaders)


def _trainer(job: TrainingJob, state: AdapterState | None) -> Trainer:
    """Return a trainer of a job, from a state or from a new adapter; its micro-batch is the whole batch."""
    return Trainer(job.base, adapter_for("normal", [job], state, _CPU), _CPU, job.batch_size)
