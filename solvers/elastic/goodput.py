"""Pollux's goodput (OSDI '21): throughput times statistical efficiency, and the speedups that follow from it.

The families are those that Pollux lists, and their shares those of its workload: small, medium, large and
extra-large jobs at 72, 20, 6 and 2 of a hundred, with two families each for the small and the medium ones,
which have equal parts here. Their parameters are chosen, not measured: plausible for one V100 per worker in
servers of 8, such that small models gain little from many GPUs and large ones scale well.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

GPUS_PER_SERVER = 8


@dataclass(frozen=True)
class GoodputModel:
    """A family of models: how fast it trains, and how much a sample is worth in a larger batch."""

    name: str
    share: float
    """Of the jobs of Pollux's workload."""
    initial_batch_samples: int
    """M_0: no batch is smaller, and one of this size has efficiency 1."""
    max_batch_samples: int
    """Of all GPUs together, beyond which a model would not converge."""
    max_gpu_batch_samples: int
    """That fit into the memory of a GPU. The rest of its part is accumulated."""
    gradient_s: float
    """Of each pass, whatever its size (alpha_grad)."""
    gradient_per_sample_s: float
    """(beta_grad)"""
    server_sync_s: float
    """Of two GPUs of one server (alpha_sync, local)."""
    server_sync_per_gpu_s: float
    """Of each more (beta_sync, local)."""
    network_sync_s: float
    """The same between servers (alpha_sync, node)."""
    network_sync_per_gpu_s: float
    """(beta_sync, node)"""
    overlap: Literal[1, 2]
    """Exponent gamma with which the times of the last pass and of synchronising are combined: 1 adds them,
    2 has them overlap in part. Pollux fits it; with these two, no more than a root is needed."""
    noise_scale_samples: float
    """Gradient noise scale phi: the batch at which a sample is worth half of what it is in the smallest ones.
    Pollux measures it while it grows; here it is its mean over the training."""

    def throughput(self, gpus: int, batch_samples: int) -> float:
        """Samples per second on so many GPUs (Pollux, section 3.2)."""
        passes = -(-batch_samples // (gpus * self.max_gpu_batch_samples))
        pass_samples = max(batch_samples / (gpus * passes), 1.0)
        pass_s = self.gradient_s + self.gradient_per_sample_s * pass_samples
        sync_s = self._sync_s(gpus)
        last_s = pass_s + sync_s if self.overlap == 1 else math.sqrt(pass_s * pass_s + sync_s * sync_s)
        return batch_samples / ((passes - 1) * pass_s + last_s)

    def efficiency(self, batch_samples: int) -> float:
        """What a sample is worth over one in a batch of the initial size (Pollux, section 3.1)."""
        return (self.noise_scale_samples + self.initial_batch_samples) / (
            self.noise_scale_samples + batch_samples
        )

    def goodput(self, gpus: int, batch_samples: int) -> float:
        """Samples per second, in samples that are worth as much as those of the initial batch."""
        return self.throughput(gpus, batch_samples) * self.efficiency(batch_samples)

    def best_batch_samples(self, gpus: int) -> int:
        """The multiple of the initial batch with the highest goodput; of equal ones the smallest."""
        batches = range(self.initial_batch_samples, self.max_batch_samples + 1, self.initial_batch_samples)
        return max(batches, key=lambda batch_samples: self.goodput(gpus, batch_samples))

    def _sync_s(self, gpus: int) -> float:
        """Of a step; none where there is one GPU."""
        if gpus == 1:
            return 0.0
        if gpus <= GPUS_PER_SERVER:
            return self.server_sync_s + self.server_sync_per_gpu_s * (gpus - 2)
        return self.network_sync_s + self.network_sync_per_gpu_s * (gpus - 2)


FAMILIES = (
    GoodputModel(
        name="ResNet-18/CIFAR-10",
        share=0.36,
        initial_batch_samples=128,
        max_batch_samples=4_096,
        max_gpu_batch_samples=1_024,
        gradient_s=0.006,
        gradient_per_sample_s=0.00015,
        server_sync_s=0.003,
        server_sync_per_gpu_s=0.0003,
        network_sync_s=0.010,
        network_sync_per_gpu_s=0.0002,
        overlap=2,
        noise_scale_samples=1_500.0,
    ),
    GoodputModel(
        name="NeuMF/MovieLens",
        share=0.36,
        initial_batch_samples=256,
        max_batch_samples=32_768,
        max_gpu_batch_samples=16_384,
        gradient_s=0.004,
        gradient_per_sample_s=0.000004,
        server_sync_s=0.003,
        server_sync_per_gpu_s=0.0002,
        network_sync_s=0.008,
        network_sync_per_gpu_s=0.0002,
        overlap=1,
        noise_scale_samples=4_000.0,
    ),
    GoodputModel(
        name="DeepSpeech2/CMU-ARCTIC",
        share=0.10,
        initial_batch_samples=20,
        max_batch_samples=640,
        max_gpu_batch_samples=32,
        gradient_s=0.03,
        gradient_per_sample_s=0.012,
        server_sync_s=0.015,
        server_sync_per_gpu_s=0.001,
        network_sync_s=0.04,
        network_sync_per_gpu_s=0.0005,
        overlap=2,
        noise_scale_samples=200.0,
    ),
    GoodputModel(
        name="BERT/SQuAD",
        share=0.10,
        initial_batch_samples=12,
        max_batch_samples=384,
        max_gpu_batch_samples=12,
        gradient_s=0.03,
        gradient_per_sample_s=0.025,
        server_sync_s=0.03,
        server_sync_per_gpu_s=0.002,
        network_sync_s=0.09,
        network_sync_per_gpu_s=0.0008,
        overlap=2,
        noise_scale_samples=150.0,
    ),
    GoodputModel(
        name="YOLOv3/PASCAL-VOC",
        share=0.06,
        initial_batch_samples=8,
        max_batch_samples=512,
        max_gpu_batch_samples=8,
        gradient_s=0.04,
        gradient_per_sample_s=0.03,
        server_sync_s=0.02,
        server_sync_per_gpu_s=0.001,
        network_sync_s=0.05,
        network_sync_per_gpu_s=0.0005,
        overlap=2,
        noise_scale_samples=300.0,
    ),
    GoodputModel(
        name="ResNet-50/ImageNet",
        share=0.02,
        initial_batch_samples=200,
        max_batch_samples=12_800,
        max_gpu_batch_samples=200,
        gradient_s=0.02,
        gradient_per_sample_s=0.0028,
        server_sync_s=0.01,
        server_sync_per_gpu_s=0.0005,
        network_sync_s=0.03,
        network_sync_per_gpu_s=0.0003,
        overlap=2,
        noise_scale_samples=8_000.0,
    ),
)


def family_at(fraction: float) -> GoodputModel:
    """The family of a job that is so far along all jobs, which are in the order of `FAMILIES`.

    Args:
        fraction: from 0 to 1; drawn evenly, the families have their shares.
    """
    bound = 0.0
    for family in FAMILIES:
        bound += family.share
        if fraction < bound:
            return family
    return FAMILIES[-1]


@lru_cache(maxsize=4_096)
def fixed_batch_speedup(
    family: GoodputModel, min_workers: int, max_workers: int, gpus_per_worker: int
) -> tuple[float, ...]:
    """The speedup of a job that is not tuned: its global batch is the best one for its base demand.

    With that it trains as well as a tuned job, and with any other number of workers at most as well.
    """
    batch_samples = family.best_batch_samples(min_workers * gpus_per_worker)
    goodputs = [
        family.goodput(workers * gpus_per_worker, batch_samples) for workers in range(1, max_workers + 1)
    ]
    return _speedup(goodputs)


@lru_cache(maxsize=4_096)
def tuned_speedup(family: GoodputModel, max_workers: int, gpus_per_worker: int) -> tuple[float, ...]:
    """The speedup of a job whose batch is the best one for each number of workers, as Pollux tunes it.

    It is over the speed of one worker that is tuned as well. So the same job has less work left in seconds of
    one worker if it is tuned: to compare the two, start from its running time with the base demand, which is
    the same.
    """
    goodputs = []
    for workers in range(1, max_workers + 1):
        gpus = workers * gpus_per_worker
        goodputs.append(family.goodput(gpus, family.best_batch_samples(gpus)))
    return _speedup(goodputs)


def _speedup(goodputs: list[float]) -> tuple[float, ...]:
    """Over the first. Where one more worker would make a job slower it idles, so that no curve falls."""
    curve = [0.0]
    for goodput in goodputs:
        curve.append(max(goodput / goodputs[0], curve[-1]))
    return tuple(curve)
