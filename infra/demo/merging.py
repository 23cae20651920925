"""The demo's merge. There are four fine-tuning jobs; one starts from another's weights and completes
sooner."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infra.demo.data import pieces, write_task
from infra.demo.demo_environment import MODEL, Record, Stage
from schemas.codec import Decision
from schemas.decisions import JobCompleted
from schemas.lora import Dataset
from schemas.merging.outcomes import MergeEvaluated
from schemas.merging.workload import MergingTerms, TrainingTarget, TuningHyperparameters, TuningWorkload

_TABLES = ("encodings/cp*.py", "encodings/iso8859*.py")
_HELP = ("pydoc_data/topics.py",)
"""Prose: the base model was trained on programs, and would learn little from more of them."""
_VALIDATION_RECORDS = 60
_RECORDS = {"code-pages": 240, "more-code-pages": 100, "help-pages": 240}
_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

_DONOR, _LEARNER, _ALONE, _UNRELATED = "code-pages", "more-code-pages", "private-code-pages", "help-pages"
_ACCURACY = 0.2


def write_tasks(folder: Path) -> None:
    """Write three tasks below `folder`: two parts of the tables of character sets, and pages of help."""
    tables, pages = pieces(_TABLES, seed=1), pieces(_HELP, seed=2)
    start = 0
    for name in (_DONOR, _LEARNER):
        end = start + _VALIDATION_RECORDS + _RECORDS[name]
        write_task(folder, name, tables[start:end], _VALIDATION_RECORDS)
        start = end
    write_task(folder, _UNRELATED, pages[: _VALIDATION_RECORDS + _RECORDS[_UNRELATED]], _VALIDATION_RECORDS)


def tuning_workload(
    task: str,
    most_iterations: int,
    accuracy: float | None = None,
    validation: str = "",
    sharing: bool = True,
    rank: int = 8,
) -> TuningWorkload:
    """Return a job on one of these tasks; `validation` names the task of its validation data, by default its
    own."""
    return TuningWorkload(
        model=MODEL,
        dataset=Dataset(path=f"{task}.jsonl", samples=_RECORDS[task]),
        validation_path=f"{validation or task}-validation.jsonl",
        hyperparameters=TuningHyperparameters(
            # High, and on every layer: it must learn visibly within few steps. At 1e-2 the donor diverges
            # now and then, and whether it helps depends on which of its epochs is the last.
            rank=rank,
            batch_size=8,
            sequence_length=64,
            learning_rate=4e-3,
            target_modules=_MODULES,
        ),
        target=TrainingTarget(accuracy=accuracy, most_iterations=most_iterations),
        sharing=sharing,
    )


_WORKLOADS = {
    # Half as long as the jobs that may learn from it, so it runs first even if steps on a busy machine are
    # measured as up to twice as long.
    _DONOR: tuning_workload(_DONOR, 120),
    _LEARNER: tuning_workload(_LEARNER, 240, _ACCURACY),
    # An equal job that does not share its weights.
    _ALONE: tuning_workload(_LEARNER, 240, _ACCURACY, sharing=False),
    # Another rank: no adapter of the others can start from its weights.
    _UNRELATED: tuning_workload(_UNRELATED, 40, rank=4),
}


@dataclass
class MergingScene:
    """Submits the four jobs, and records their results."""

    stage: Stage
    evaluated: MergeEvaluated | None = None
    """Decision that ended the merge of the job that learns."""
    completed: dict[str, JobCompleted] = field(default_factory=dict)

    @property
    def shortcomings(self) -> list[str]:
        if left := sorted(_WORKLOADS.keys() - self.completed.keys()):
            return [f"not done: {', '.join(left)}"]
        if self.evaluated is None or self.evaluated.reason != "finished":
            return [f"{_LEARNER} was not merged to its end"]
        if self.iterations(_LEARNER) >= self.iterations(_ALONE):
            return [f"{_LEARNER} was not done sooner than {_ALONE}"]
        return []

    @property
    def summary(self) -> str:
        assert self.evaluated is not None, "a scene without shortcomings has a merge"
        return (
            f"a job that learned from another was done after {self.iterations(_LEARNER)} iterations; "
            f"the same job alone took {self.iterations(_ALONE)}"
        )

    def iterations(self, job_id: str) -> int:
        batch = _WORKLOADS[job_id].hyperparameters.batch_size
        return self.completed[job_id].samples_done // batch

    def play(self) -> Iterator[str]:
        stage = self.stage
        yield from stage.online("merging")
        stage.progress.show(
            f"*** {len(_WORKLOADS)} tuning jobs are submitted; {_ALONE} does not share, and the adapter of "
            f"{_UNRELATED} is of another rank"
        )
        for job_id, workload in _WORKLOADS.items():
            stage.submit(stage.zone("merging").id, job_id, workload, MergingTerms())
        while left := [job_id for job_id in _WORKLOADS if job_id not in self.completed]:
            yield f"{', '.join(left)} to be tuned"

    def note(self, records: Sequence[Record]) -> None:
        self.stage.refuse_lost(records, list(_WORKLOADS))
        for record in records:
            match record.outcome if isinstance(record, Decision) else None:
                case MergeEvaluated(job_id=job_id) as evaluated if job_id == _LEARNER:
                    self.evaluated = evaluated
                case JobCompleted() as completed if completed.job_id in _WORKLOADS:
                    self.completed[completed.job_id] = completed
