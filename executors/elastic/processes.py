"""The worker processes of elastic jobs."""

from executors.elastic.messages import WORDS, ElasticWord, WorkerOrder
from executors.workers import processes
from executors.workers.processes import WorkerProcess

_WORKER = "executors.elastic.worker"


def start_worker(order: WorkerOrder) -> WorkerProcess[ElasticWord]:
    """Start a rank of a job.

    Raises:
        OSError: the machine has no room for another process.
        EOFError: the fork server has ended just now.
    """
    return WorkerProcess(f"{_WORKER}:run_worker", order, WORDS, f"{order.job_id}-worker")


def warm_up() -> int:
    """Start the fork server and wait until it has imported; return how many CUDA devices there are."""
    return processes.warm_up(_WORKER)
