"""The worker processes of elastic jobs."""

from executors.elastic.messages import WORDS, ElasticWord, WorkerOrder
from executors.processes import forked_process
from executors.processes.forked_process import ForkedProcess

_WORKER = "executors.elastic.worker"


def start_worker(order: WorkerOrder) -> ForkedProcess[ElasticWord]:
    """Start a rank of a job.

    Raises:
        OSError: the machine has no room for another process.
        EOFError: the fork server has ended just now.
    """
    return ForkedProcess(f"{_WORKER}:run_worker", order, WORDS, f"{order.job_id}-worker")


def warm_up() -> int:
    """Start the fork server and wait until it has imported; return how many CUDA devices there are."""
    return forked_process.warm_up(_WORKER)
