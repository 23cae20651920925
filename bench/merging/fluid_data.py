"""Jobs of the fluid simulator from a folder of measured profiles: workloads, learning curves, step times."""

import csv
import gzip
import json
import math
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from bench.merging.fluid import Cluster, FluidJob, Placement
from schemas.merging.reports import MeasuredStep

MAX_EPOCHS = 10
"""At which a run stops that never reaches its target."""
SAMPLES_PER_EPOCH: Mapping[str, int] = {
    "wnli": 159,
    "rte": 623,
    "mrpc": 917,
    "stsb": 1_438,
    "sst2": 16_838,
    "qnli": 26_186,
    "qqp": 90_962,
    "mnli": 98_176,
    "snli": 137_344,
    "ag_news": 30_000,
    "Bingsu#Cat_and_Dog": 8_000,
    "frgfm#imagenette": 9_469,
    "Bingsu#Human_Action_Recognition": 12_600,
    "cifar100": 50_000,
    "fashion_mnist": 60_000,
    "mnist": 60_000,
    "food101": 75_750,
    "imagenet-split-0": 25_000,
    "imagenet-split-1": 75_000,
    "imagenet-split-2": 100_000,
}

_Rows = Mapping[int, tuple[float, float]]
"""By batch per GPU: seconds of a step, and those of it that are for synchronising."""


def read_jobs(folder: Path, workload: str, model: str, cluster: Cluster) -> list[FluidJob]:
    """The jobs of `workloads/<workload>-<model>.csv`, on V100 GPUs."""
    curves = json.loads(gzip.decompress((folder / f"learning_{model}.json.gz").read_bytes()))["single"]
    steps = StepTimesByPlacement(folder, model, cluster)
    jobs = []
    for row in _rows(folder / "workloads" / f"{workload}-{model}.csv"):
        task = row["application"].split("@")[1]
        batch = int(row["target_batch_size"])
        curve = curves[task][row["target_lr"]][row["target_gradient_steps"]]
        jobs.append(
            FluidJob(
                job_id=row["name"],
                submitted_s=float(row["submission_time"]),
                asked_gpus=int(row["num_gpus"]),
                iterations=_epochs(curve, float(row["target_metric"]))
                * math.ceil(SAMPLES_PER_EPOCH[task] / batch),
                step_s=steps.by_placement(batch),
            )
        )
    return jobs


def read_switch_s(folder: Path, model: str) -> float:
    """What starting a task cold takes."""
    return max(float(row["time_cost"]) for row in _rows(folder / f"{model}_V100_context_switch.csv"))


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _epochs(curve: Mapping[str, Any], target: float) -> float:
    """When the curve first reaches the target."""
    (metric,) = (name for name in curve if f"{name}_epoch" in curve)
    reached = [
        float(epoch)
        for epoch, value in zip(curve[f"{metric}_epoch"], curve[metric], strict=True)
        if value >= target
    ]
    return min(reached, default=float(MAX_EPOCHS))


class StepTimesByPlacement:
    """Seconds of an iteration by placement, for each batch."""

    def __init__(self, folder: Path, model: str, cluster: Cluster) -> None:
        self._measured: dict[Placement, dict[int, tuple[float, float]]] = defaultdict(dict)
        for row in _rows(folder / f"{model}_V100_placements.csv"):
            placement = tuple(sorted(map(int, row["placement"])))
            self._measured[placement][int(row["local_bsz"])] = _times(row)
        self._scaled: dict[tuple[int, int], dict[int, tuple[float, float]]] = defaultdict(dict)
        for row in _rows(folder / f"{model}_V100_scalability.csv"):
            shape = int(row["num_replicas"]), int(row["num_nodes"])
            self._scaled[shape][int(row["local_bsz"])] = _times(row)
        self._cluster = cluster
        self._known: dict[int, dict[Placement, float]] = {}

    def by_placement(self, batch: int) -> Mapping[Placement, float]:
        """Of all placements that a batch can be split over, with as many parts accumulated as is fastest."""
        if batch not in self._known:
            found = {}
            for placement in self._placements:
                seconds = _fastest(self._of(placement), batch, sum(placement))
                if seconds is not None:
                    found[placement] = seconds
            self._known[batch] = found
        return self._known[batch]

    def measured(self, batch: int, placement: Placement) -> MeasuredStep:
        """The fastest way on a placement, ascending. GPUs among which the batch cannot be split idle."""
        gpus = sum(placement)
        while (way := _fastest_way(self._of(placement), batch, gpus)) is None:
            gpus -= 1
            placement = self._cluster.compact(gpus)
        step_s, exchange_s, micro_batch_size, accumulated = way
        return MeasuredStep(
            gpus=gpus,
            nodes=len(placement),
            micro_batch_size=micro_batch_size,
            accumulation_steps=accumulated,
            step_s=step_s,
            exchange_s=min(exchange_s, step_s),
        )

    @cached_property
    def _placements(self) -> list[Placement]:
        """Hundreds of thousands on a large cluster."""
        return _placements(self._cluster)

    def _of(self, placement: Placement) -> _Rows:
        """As measured on it, or else on the most similar number of nodes: between nodes, synchronising was
        found to depend on the number of GPUs alone."""
        if placement in self._measured:
            return self._measured[placement]
        gpus, nodes = sum(placement), len(placement)
        shapes = [shape for shape in self._scaled if shape[0] == gpus]
        if not shapes:
            return {}
        return self._scaled[min(shapes, key=lambda shape: (abs(shape[1] - nodes), shape[1]))]


def _times(row: Mapping[str, str]) -> tuple[float, float]:
    return float(row["step_time"]), float(row["sync_time"])


def _fastest(rows: _Rows, batch: int, gpus: int) -> float | None:
    """Seconds of the fastest way; none where there is no way."""
    way = _fastest_way(rows, batch, gpus)
    return None if way is None else way[0]


def _fastest_way(rows: _Rows, batch: int, gpus: int) -> tuple[float, float, int, int] | None:
    """Of the ways to accumulate a batch on so many GPUs: seconds of a step, and those of synchronising, the
    batch per GPU, and how often it is taken. None where the batch cannot be split into what was measured."""
    ways = []
    for local, (step_s, sync_s) in rows.items():
        accumulated, rest = divmod(batch, local * gpus)
        if accumulated > 0 and rest == 0:
            ways.append(((accumulated - 1) * (step_s - sync_s) + step_s, sync_s, local, accumulated))
    return min(ways, default=None)


def _placements(cluster: Cluster) -> list[Placement]:
    """Of 1, 2 and 3 GPUs, and of whole nodes' worth, in every way on the nodes."""
    per_node = cluster.gpus_per_node
    sizes = {*range(1, per_node), *range(per_node, cluster.gpus + 1, per_node)}
    found: list[Placement] = []

    def extend(placement: Placement, gpus: int) -> None:
        if gpus in sizes:
            found.append(placement)
        if len(placement) < cluster.nodes:
            for more in range(placement[-1] if placement else 1, per_node + 1):
                extend((*placement, more), gpus + more)

    extend((), 0)
    return found
