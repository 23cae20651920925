"""The demo's mixture of experts: a dense model gets experts, is trained on two ranks, and then serves.

Half-way through, its requests are of another kind: their tokens go to other experts, which are placed again.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infra.demo.data import pieces, write_records, write_task
from infra.demo.demo_environment import MODEL, Record, Stage
from schemas.codec import Decision
from schemas.decisions import JobCompleted
from schemas.experts.outcomes import PlacementDecided
from schemas.experts.reports import ExpertsRouted
from schemas.experts.workload import (
    Conversion,
    ExpertsTerms,
    GatingRule,
    MoeHyperparameters,
    MoeServeWorkload,
    MoeTrainWorkload,
    Requests,
)
from schemas.lora import Dataset

_TRAINED, _SERVED = "experts-trained", "experts-served"
_TEXTS, _PROMPTS = "mixed-texts", "prompts.jsonl"
_PROGRAMS = ("asyncio/*.py", "unittest/*.py")
_TABLES = ("encodings/cp*.py", "encodings/iso8859*.py")
_RECORDS = 400
_PROMPTS_OF_A_KIND = 300
_EXPERTS = 4
_RANKS = 2


def write_texts(folder: Path) -> None:
    """Write the training data, programs and tables mixed, and the prompts: first all programs, then all
    tables."""
    programs, tables = pieces(_PROGRAMS, seed=3), pieces(_TABLES, seed=4)
    half = _RECORDS // 2
    mixed = [text for pair in zip(programs[:half], tables[:half], strict=True) for text in pair]
    write_task(folder, _TEXTS, mixed, held_back=0)
    prompts = [
        *programs[half : half + _PROMPTS_OF_A_KIND],
        *tables[half : half + _PROMPTS_OF_A_KIND],
    ]
    write_records(folder / _PROMPTS, prompts)


def training_workload(work_samples: int = _RECORDS) -> MoeTrainWorkload:
    """Return a job that adds experts to a dense model, and trains them with adaptive gating."""
    return MoeTrainWorkload(
        work_samples=work_samples,
        model=MODEL,
        conversion=Conversion(experts=_EXPERTS, noise=0.1),
        dataset=Dataset(path=f"{_TEXTS}.jsonl", samples=_RECORDS),
        gating=GatingRule(mode="adaptive", threshold=0.1),
        hyperparameters=MoeHyperparameters(
            global_batch_size=16, sequence_length=64, learning_rate=1e-3, curriculum=True
        ),
        ranks=_RANKS,
    )


def serving_workload(model: str) -> MoeServeWorkload:
    """Return a service that answers all prompts once, at 40 requests a second at most."""
    return MoeServeWorkload(
        model=model,
        requests=Requests(dataset=Dataset(path=_PROMPTS, samples=2 * _PROMPTS_OF_A_KIND), rate_per_s=40.0),
        ranks=_RANKS,
        profile_batches=8,
    )


@dataclass
class ExpertsScene:
    """Submits the two jobs, and records their results."""

    stage: Stage
    placements: list[PlacementDecided] = field(default_factory=list)
    """Placements of the service."""
    completed: dict[str, JobCompleted] = field(default_factory=dict)
    routed: int = 0
    """Tokens of the training, counted once in each layer."""
    doubles: int = 0
    """Tokens with two experts among them."""

    @property
    def shortcomings(self) -> list[str]:
        if left := sorted({_TRAINED, _SERVED} - self.completed.keys()):
            return [f"not done: {', '.join(left)}"]
        found = []
        if not 0 < self.doubles < self.routed:
            found.append("adaptive gating gave not one expert to some tokens and two to others")
        if not any(placed.reason == "initial" for placed in self.placements):
            found.append("no experts were placed by their popularity")
        if not any(placed.reason == "popularity_shifted" for placed in self.placements):
            found.append("no placement followed the popularity of experts")
        return found

    @property
    def summary(self) -> str:
        last = self.placements[-1].layers[0]
        return (
            f"a model of experts was trained and answered {self.completed[_SERVED].samples_done} requests; "
            f"moving its experts took {last.gain:.0%} off the busiest device"
        )

    def play(self) -> Iterator[str]:
        stage, zone = self.stage, self.stage.zone("experts").id
        yield from stage.online("experts")
        stage.progress.show(
            f"*** {_TRAINED} is submitted: {MODEL} is given experts, and trains on {_RANKS} ranks"
        )
        stage.submit(zone, _TRAINED, training_workload(), ExpertsTerms())
        yield from self._until_done(_TRAINED)
        folders = stage.deployment.spec.folders
        shutil.copytree(folders.adapters / stage.cell.cell / "demo" / _TRAINED, folders.models / _TRAINED)
        stage.progress.show(
            f"*** {_SERVED} is submitted: it serves {_TRAINED}, programs first and then tables"
        )
        stage.submit(zone, _SERVED, serving_workload(_TRAINED), ExpertsTerms())
        yield from self._until_done(_SERVED)

    def note(self, records: Sequence[Record]) -> None:
        self.stage.refuse_lost(records, [_TRAINED, _SERVED])
        for record in records:
            match record.outcome if isinstance(record, Decision) else record.event:
                case ExpertsRouted(job_id=job_id) as report if job_id == _TRAINED:
                    doubles = sum(layer.doubles for layer in report.layers)
                    self.doubles += doubles
                    self.routed += sum(sum(layer.tokens) for layer in report.layers) - doubles
                case PlacementDecided(job_id=job_id) as placed if job_id == _SERVED:
                    self.placements.append(placed)
                case JobCompleted() as completed if completed.job_id in (_TRAINED, _SERVED):
                    self.completed[completed.job_id] = completed

    def _until_done(self, job_id: str) -> Iterator[str]:
        while job_id not in self.completed:
            yield f"{job_id} to be done"
