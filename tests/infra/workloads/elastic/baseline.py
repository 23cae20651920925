"""The thesis' baseline by itself: first in, first out on servers of one cluster, with no loans or scaling.

It shares no code with the product's simulator, so that the generator is calibrated independently of it.
"""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from infra.workloads.elastic.jobs import shape
from infra.workloads.elastic.requests import JobRequest

SERVER_GPUS = 8
INTERVAL_S = 60.0


@dataclass(frozen=True)
class BaselineRun:
    """Results of jobs, in the order of their submission."""

    queuing_s: list[float]
    completion_s: list[float]
    utilisation: float
    """Utilisation of the GPUs, while jobs were submitted."""


class Servers:
    """Free GPUs by server: best fit takes the fullest server with room."""

    def __init__(self, count: int):
        self.free = [SERVER_GPUS] * count
        self.by_free: list[list[int]] = [[] for _ in range(SERVER_GPUS + 1)]
        self.by_free[SERVER_GPUS] = list(range(count))
        self.free_gpus = count * SERVER_GPUS

    def _change(self, server: int, gpus: int) -> None:
        self.by_free[self.free[server]].remove(server)
        self.free[server] += gpus
        self.by_free[self.free[server]].append(server)
        self.free_gpus += gpus

    def place(self, workers: int, gpus_per_worker: int) -> list[int] | None:
        if workers * gpus_per_worker > self.free_gpus:
            return None
        placed: list[int] = []
        for _ in range(workers):
            room = next(
                (free for free in range(gpus_per_worker, SERVER_GPUS + 1) if self.by_free[free]), None
            )
            if room is None:
                self.release(placed, gpus_per_worker)
                return None
            placed.append(self.by_free[room][-1])
            self._change(placed[-1], -gpus_per_worker)
        return placed

    def release(self, placed: Sequence[int], gpus_per_worker: int) -> None:
        for server in placed:
            self._change(server, gpus_per_worker)


def run_baseline(requests: Sequence[JobRequest], servers: int, span_s: float) -> BaselineRun:
    """Every minute, jobs start in the order of their submission until one does not fit, which blocks all."""
    cluster = Servers(servers)
    running: list[tuple[float, int, list[int], int]] = []
    waiting: deque[int] = deque()
    queuing_s = [0.0] * len(requests)
    used_gpu_s = 0.0
    submitted, time_s = 0, 0.0
    while submitted < len(requests) or waiting:
        next_s = requests[submitted].offset_s if submitted < len(requests) else math.inf
        if waiting:
            next_s = min(next_s, running[0][0])
        time_s = max(time_s, math.ceil(next_s / INTERVAL_S) * INTERVAL_S)
        while running and running[0][0] <= time_s:
            _, _, placed, gpus_per_worker = heapq.heappop(running)
            cluster.release(placed, gpus_per_worker)
        while submitted < len(requests) and requests[submitted].offset_s <= time_s:
            waiting.append(submitted)
            submitted += 1
        while waiting:
            index = waiting[0]
            request = requests[index]
            workers, gpus_per_worker = shape(request, SERVER_GPUS)
            started = cluster.place(workers, gpus_per_worker)
            if started is None:
                break
            waiting.popleft()
            queuing_s[index] = time_s - request.offset_s
            end_s = time_s + request.duration_s
            heapq.heappush(running, (end_s, index, started, gpus_per_worker))
            used_gpu_s += request.gpus * max(min(end_s, span_s) - time_s, 0.0)
    completion_s = [wait_s + request.duration_s for wait_s, request in zip(queuing_s, requests, strict=True)]
    return BaselineRun(queuing_s, completion_s, used_gpu_s / (servers * SERVER_GPUS * span_s))
