"""Workers of a job from its demand for GPUs."""

from infra.workloads.elastic.requests import JobRequest

SCALABLE_WORKER_GPUS = 2
"""GPUs of a worker of a scalable job (thesis, Figure 3.3)."""


def shape(request: JobRequest, server_gpus: int) -> tuple[int, int]:
    """Return the number of workers and the GPUs of each; their product is the requested demand.

    A scalable job has workers of two GPUs. Any other has as few equal workers as fit on servers: one up to a
    server's GPUs, else workers of the largest size that divides its demand.
    """
    if request.scalable and request.gpus % SCALABLE_WORKER_GPUS == 0 and server_gpus >= SCALABLE_WORKER_GPUS:
        return request.gpus // SCALABLE_WORKER_GPUS, SCALABLE_WORKER_GPUS
    per_worker = next(
        gpus for gpus in range(min(server_gpus, request.gpus), 0, -1) if request.gpus % gpus == 0
    )
    return request.gpus // per_worker, per_worker
