"""Files of fine-tuning jobs: the one of the page, and what is refused with the field's name."""

from pathlib import Path

import pytest

from infra.cli import run
from infra.event_files import EntriesFileError, read_jobs
from schemas.merging.workload import MergingTerms, TuningWorkload

PAGE = (Path(__file__).parents[2] / "docs" / "merging.md").read_text(encoding="utf-8")
JOB = PAGE.split("```yaml\n")[1].split("```")[0]


def written(folder: Path, text: str) -> str:
    file = folder / "jobs.yaml"
    file.write_text(text)
    return str(file)


def test_job_of_page_has_fields_of_table_1(tmp_path: Path) -> None:
    (job,) = read_jobs(written(tmp_path, JOB), 0.0, "c")
    assert job.terms == MergingTerms()
    assert isinstance(job.workload, TuningWorkload)
    tuned = job.workload
    assert (tuned.model, tuned.dataset.samples, tuned.hyperparameters.batch_size) == (
        "roberta-base",
        16838,
        32,
    )
    assert (tuned.target.accuracy, tuned.sharing, tuned.pipeline) == (0.95, True, False)
    assert tuned.target.most_iterations == 10 * tuned.iterations_per_epoch


TUNED = (
    "    hyperparameters: {rank: 8, batch_size: 32, learning_rate: 0.0004, target_modules: [query, value]}\n"
)
VALIDATION = "    validation_path: reviews/validation.jsonl\n"
FAULTS = {
    "an accuracy above 1": ("accuracy: 0.95", "accuracy: 1.5", "target.accuracy: Input should be less than"),
    "an accuracy of 0": (
        "accuracy: 0.95",
        "accuracy: 0",
        "target.accuracy: Input should be greater than or equal to 0.001",
    ),
    "an accuracy that is no number": (
        "accuracy: 0.95",
        "accuracy: .nan",
        "workload.target.accuracy: Input should be a finite number",
    ),
    "no bound on iterations": (", most_iterations: 5270", "", "target.most_iterations: Field required"),
    "no iterations": (
        "most_iterations: 5270",
        "most_iterations: 0",
        "target.most_iterations: Input should be",
    ),
    "an unknown field": ("pipeline: false", "epochs: 3", "epochs: Extra inputs are not permitted"),
    "an unknown hyperparameter": ("rank: 8", "ranks: 8", "hyperparameters.ranks: Extra inputs"),
    "sharing without validation data": (
        f"{VALIDATION}{TUNED}    target: {{accuracy: 0.95, ",
        f"{TUNED}    target: {{",
        "a job that shares needs validation_path",
    ),
    "an accuracy without validation data": (VALIDATION, "", "target.accuracy needs validation_path"),
    "a path that leaves the data": ("reviews/train.jsonl", "../secret.jsonl", "dataset.path: "),
    "a tag of an object": ("pipeline: false", "pipeline: !!python/object/apply:os.system [id]", "tag"),
    "a tag of one's own": ("rank: 8", "rank: !rank 8", "tag"),
    "an alias": ("model: roberta-base", "model: *base", "alias"),
    "a number as text": (
        "samples: 16838",
        "samples: many",
        "dataset.samples: Input should be a valid integer",
    ),
}


@pytest.mark.parametrize(("before", "after", "fault"), FAULTS.values(), ids=FAULTS)
def test_impossible_job_is_refused_with_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], before: str, after: str, fault: str
) -> None:
    text = JOB.replace(before, after)
    assert text != JOB
    file = written(tmp_path, text)
    with pytest.raises(EntriesFileError) as refused:
        read_jobs(file, 0.0, "c")
    assert fault in str(refused.value)
    assert str(refused.value).startswith(f"{file}:")
    # The error comes before any broker is sought, so nothing can have been sent.
    assert run(["submit", file, "--bootstrap-servers", "127.0.0.1:1"]) == 1
    error = capsys.readouterr().err
    assert fault in error
    assert error.count("\n") == 1


def test_messages_of_page_are_printed(tmp_path: Path) -> None:
    table = PAGE.split("| mistake | message |\n|---|---|\n")[1].split("\n\n")[0]
    rows = [[cell.strip().strip("`") for cell in row.strip("|").split(" | ")] for row in table.splitlines()]
    changes = [
        ("accuracy: 0.95", "accuracy: 1.5"),
        (VALIDATION, ""),
        (VALIDATION, ""),
        ("accuracy: 0.95", "accuracy: .nan"),
        ("pipeline: false", "epochs: 3"),
        ("rank: 8", "rank: !rank 8"),
    ]
    assert len(rows) == len(changes)
    for number, ((_, message), change) in enumerate(zip(rows, changes, strict=True)):
        text = JOB.replace(*change)
        if number == 1:
            text = text.replace("accuracy: 0.95, ", "")
        if number == 2:
            text = text.replace("sharing: true", "sharing: false")
        with pytest.raises(EntriesFileError) as refused:
            read_jobs(written(tmp_path, text), 0.0, "c")
        assert message in str(refused.value)
