"""Reading the traces of real clusters: `job_id,user,submit_time_s,duration_s,gpus,gpu_type,status,model`."""

import re
from dataclasses import dataclass
from pathlib import Path

from infra.workloads.rows import TraceError, TraceRow, opened_rows

COLUMNS = ("job_id", "user", "submit_time_s", "duration_s", "gpus", "gpu_type", "status", "model")
GPU_TYPES = (
    "A10",
    "A30",
    "A40",
    "A100",
    "A800",
    "B200",
    "GB200",
    "H20",
    "H100",
    "H200",
    "H800",
    "K80",
    "L4",
    "L40S",
    "M60",
    "P40",
    "P100",
    "T4",
    "V100",
)
"""Values of the column; it may be blank, as in traces without it. They are not used, but a file with others
is not the expected trace."""
MAX_GPUS = 100_000
MAX_SECONDS = 1e10
UNKNOWN_USER = "unknown"
"""User of a job whose trace has none."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class TraceJob:
    """Properties of one job of a real cluster that workloads use."""

    job_id: str
    user: str
    submit_time_s: float
    """Time since the start of the trace's window."""
    duration_s: float
    gpus: float
    """Number of GPUs; below 1, a share of one."""

    @property
    def gpu_s(self) -> float:
        """GPU time, which stands for the work of the job."""
        return self.duration_s * self.gpus


def read_trace(path: Path) -> list[TraceJob]:
    """Read a CSV file, gzipped or plain, of jobs in the order of their submission.

    Raises:
        TraceError: the file cannot be read, a row is invalid, or earlier than the one before.
    """
    with opened_rows(path, COLUMNS) as (_, rows):
        jobs: list[TraceJob] = []
        row_of: dict[str, int] = {}
        for row in rows:
            job = _job(row)
            if (first := row_of.setdefault(job.job_id, row.number)) != row.number:
                raise TraceError(
                    f"{path}: row {row.number}: column job_id: {job.job_id} is in row {first} already"
                )
            if jobs and job.submit_time_s < jobs[-1].submit_time_s:
                raise TraceError(
                    f"{path}: row {row.number}: column submit_time_s: {job.submit_time_s} is before the "
                    f"{jobs[-1].submit_time_s} of the job above: sort the rows by this column"
                )
            jobs.append(job)
    if not jobs:
        raise TraceError(f"{path}: has no job")
    return jobs


def _job(row: TraceRow) -> TraceJob:
    fields = row.fields
    user = fields["user"] or UNKNOWN_USER
    for column, name in (("job_id", fields["job_id"]), ("user", user)):
        if not _NAME.fullmatch(name):
            raise row.fault(column, "a name of up to 128 letters, digits, '.', '_' or '-'")
    if fields["gpu_type"] and fields["gpu_type"] not in GPU_TYPES:
        raise row.fault("gpu_type", f"blank or one of {', '.join(GPU_TYPES)}")
    return TraceJob(
        job_id=fields["job_id"],
        user=user,
        submit_time_s=row.real("submit_time_s", MAX_SECONDS),
        duration_s=row.real("duration_s", MAX_SECONDS),
        gpus=row.positive("gpus", MAX_GPUS),
    )
