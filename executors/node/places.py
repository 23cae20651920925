"""Places of a job's files on a node and on the shared disk."""

from pathlib import Path


def checkpoint_root(state_root: Path, cell: str) -> Path:
    """Return the folder of all checkpoints, by job: ids are unique in a cell, whatever the runner."""
    return state_root / cell / "checkpoints"


def job_folder(state_root: Path, cell: str, job_id: str) -> Path:
    """Return the folder of the meetings of a job's ranks."""
    return state_root / cell / "meetings" / job_id


def result_path(cell: str, user: str, job_id: str) -> str:
    """Return the path of a job's result, relative to the output root."""
    return f"{cell}/{user}/{job_id}"
