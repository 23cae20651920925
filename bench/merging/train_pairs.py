"""Training of `trained_pairs.json`: tasks of real text alone and in every pair, on two small base models.

    python -P -m bench.merging.train_pairs

Training, profile and evaluation are the tuner's own code on one thread, so that a seed gives the same file
on a machine. A donor of a temporal merge leaves the weights with which it was best. All jobs have the same
number of epochs of their own data, and in a shared run the iterations of the longer one.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from bench.merging.trained import (
    EPOCHS,
    EVALUATIONS_PER_EPOCH,
    TRAINED_PAIRS,
    TrainedBackbone,
    TrainedMerge,
    TrainedPairs,
    TrainedTask,
)
from bench.merging.transfers import TEXTS
from executors.gang.messages import Membership
from executors.lora.base_model import load_base
from executors.lora.dataset import DatasetRoot
from executors.lora.default_base import Recipe, default_base_directory
from executors.lora.lora_task import AdapterState
from executors.lora.shared_base import SharedBase
from executors.processes.threads import one_thread
from executors.tuner.checkpoints import fresh_from
from executors.tuner.data import Loaders, SharedTokenizer
from executors.tuner.embedding import embed
from executors.tuner.opening import OpenTask, TrainingJob, open_job
from executors.tuner.replicas import Replicas
from executors.tuner.settings import TunerSettings
from infra.demo.data import pieces, write_task
from schemas.lora import Dataset
from schemas.merging.commands import JobOrder, TransferMode
from schemas.merging.estimates import MergeMode
from schemas.merging.settings import MergingPolicy
from schemas.merging.workload import TrainingTarget, TuningHyperparameters, TuningWorkload

BACKBONES: Mapping[str, Recipe] = {
    "three layers": Recipe(seed=31, hidden_features=96, intermediate_features=256, layers=3),
    "four layers": Recipe(seed=41, hidden_features=64, intermediate_features=192, layers=4, steps=60),
}
RECORDS: Mapping[str, int] = {
    "code pages": 96,
    "more code pages": 48,
    "asyncio": 88,
    "multiprocessing": 56,
    "email": 72,
    "entities": 64,
}
"""Numbers of training records of the tasks, all different."""
_VALIDATION_RECORDS = 48
_ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_DIGITS = 6
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class _Evaluations:
    """Evaluations of a run, by job."""

    losses: tuple[float, ...]
    iterations: tuple[int, ...]
    accuracies: tuple[tuple[float, ...], ...]
    best: AdapterState
    """State when the first job was best."""


def train_pairs(seed: int) -> TrainedPairs:
    """Train all tasks and pairs on all base models."""
    return TrainedPairs(seed=seed, backbones=tuple(_backbone(name, seed) for name in BACKBONES))


def _backbone(name: str, seed: int) -> TrainedBackbone:
    with one_thread(), TemporaryDirectory() as folder:
        base = load_base(default_base_directory(BACKBONES[name]))
        jobs = {task: _open(task, Path(folder), seed, base) for task in RECORDS}
        try:
            alone = {task: _train("normal", (job,), None) for task, job in jobs.items()}
            return TrainedBackbone(
                model=name,
                parameters=sum(each.numel() for each in base.model.parameters()),
                tasks=tuple(_task(name, jobs[name], run) for name, run in alone.items()),
                merges=tuple(_merges(jobs, alone)),
            )
        finally:
            for job in jobs.values():
                job.loader.close()


def _task(name: str, job: TrainingJob, run: _Evaluations) -> TrainedTask:
    policy = MergingPolicy()
    records = job.loader.stream.indices(0, min(policy.fisher_samples, len(job.loader.training)))
    fisher = embed(job.base, [job.loader.training[record] for record in records], float("inf")).fisher
    return TrainedTask(
        name=name,
        samples=len(job.loader.training),
        batch_size=job.batch_size,
        losses=_rounded(run.losses[: policy.profile_iterations]),
        embedding=_rounded(fisher),
        iterations=run.iterations,
        accuracies=_rounded(run.accuracies[0]),
    )


def _merges(jobs: Mapping[str, TrainingJob], alone: Mapping[str, _Evaluations]) -> Iterator[TrainedMerge]:
    for donor, receiver in permutations(jobs, 2):
        job = jobs[receiver]
        run = _train("normal", (job,), fresh_from(alone[donor].best, job.layout))
        yield _merge("temporal", donor, receiver, run, 0)
    for one, other in combinations(jobs, 2):
        run = _train("spatial", (jobs[one], jobs[other]), None)
        yield _merge("spatial", other, one, run, 0)
        yield _merge("spatial", one, other, run, 1)


def _merge(mode: MergeMode, donor: str, receiver: str, run: _Evaluations, place: int) -> TrainedMerge:
    accuracies = _rounded(run.accuracies[place])
    return TrainedMerge(
        mode=mode, donor=donor, receiver=receiver, iterations=run.iterations, accuracies=accuracies
    )


def _train(mode: TransferMode, jobs: Sequence[TrainingJob], state: AdapterState | None) -> _Evaluations:
    """Train jobs without progress, and measure them before, and `EVALUATIONS_PER_EPOCH` times in each epoch
    of the job with most iterations."""
    active = [replace(job, head=place if mode == "spatial" else 0) for place, job in enumerate(jobs)]
    membership = Membership(generation=1, rank=0, world=1)
    rank = Replicas(mode, OpenTask(active, state), membership, 1, TunerSettings(), _CPU)
    rank.begin(active)
    most = max(job.order.workload.target.most_iterations for job in active)
    times = EPOCHS * EVALUATIONS_PER_EPOCH
    due = sorted({most * number // times for number in range(times + 1)})
    losses: list[float] = []
    found: list[list[float]] = [[] for _ in active]
    best = rank.state()
    for done in range(most + 1):
        if done in due:
            for job, accuracies in zip(active, found, strict=True):
                right, total = rank.count_right(job, len(job.validation))
                accuracies.append(right / total)
            if found[0][-1] == max(found[0]):
                best = rank.state()
        if done < most:
            counts = rank.upcoming()
            losses += [loss for loss in rank.step(()).losses[:1] if loss is not None]
            for job, count in zip(active, counts, strict=True):
                job.iterations, job.drawn = job.iterations + 1, job.drawn + count
    assert best is not None, "the one rank leads"
    return _Evaluations(tuple(losses), tuple(due), tuple(map(tuple, found)), best)


def _open(name: str, folder: Path, seed: int, base: SharedBase) -> TrainingJob:
    """Write a task's data, and open its job."""
    file, records = name.replace(" ", "-"), RECORDS[name]
    write_task(folder, file, pieces(TEXTS[name], seed)[: records + _VALIDATION_RECORDS], _VALIDATION_RECORDS)
    batch_size = 8
    workload = TuningWorkload(
        model="base",
        dataset=Dataset(path=f"{file}.jsonl", samples=records),
        validation_path=f"{file}-validation.jsonl",
        hyperparameters=TuningHyperparameters(
            # High, and on every layer, so that a task learns visibly in so few iterations.
            target_modules=_ADAPTED,
            learning_rate=5e-3,
            batch_size=batch_size,
            sequence_length=40,
            seed=seed,
        ),
        target=TrainingTarget(most_iterations=EPOCHS * -(-records // batch_size)),
    )
    order = JobOrder(run_id=f"{file}/1", job_id=file, user="u", workload=workload, resume_iterations=0)
    settings = TunerSettings(dataset_root=folder)
    return open_job(order, base, Loaders(DatasetRoot(folder), SharedTokenizer(base.tokenizer), settings))


def _rounded(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(f"{value:.{_DIGITS}g}") for value in values)


def main() -> None:
    """Train all pairs and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=TRAINED_PAIRS)
    arguments = parser.parse_args()
    arguments.out.write_text(train_pairs(arguments.seed).model_dump_json() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
