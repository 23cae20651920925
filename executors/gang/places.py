"""Where the files of a job lie."""

from pathlib import Path


def checkpoint_root(state_root: Path, cell: str) -> Path:
    """Where checkpoints lie, by job: ids are unique in a cell, whichever runner a job is for."""
    return state_root / cell / "checkpoints"


def job_folder(state_root: Path, cell: str, job_id: str) -> Path:
    """Where the processes of a job find each other."""
    return state_root / cell / "meetings" / job_id


def result_path(cell: str, user: str, job_id: str) -> str:
    """What the job leaves, relative to the output root."""
    return f"{cell}/{user}/{job_id}"
