"""Comparison of adapters on disk with the log."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from schemas.decisions import JobCompleted

_WEIGHTS = "adapter_model.safetensors"
_CONFIGURATION = "adapter_config.json"


def faulty_adapters(root: Path, completed: Iterable[JobCompleted]) -> list[str]:
    """Return the jobs whose adapter on disk differs from the log, or is missing."""
    return [job.job_id for job in completed if not _is_whole(root, job)]


def _is_whole(root: Path, job: JobCompleted) -> bool:
    if job.adapter_path is None:
        return False
    folder = root / job.adapter_path
    try:
        weights = (folder / _WEIGHTS).read_bytes()
    except OSError:
        return False
    return (folder / _CONFIGURATION).is_file() and hashlib.blake2b(
        weights, digest_size=32
    ).hexdigest() == job.adapter_digest
