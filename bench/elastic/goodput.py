"""Pollux's goodput (OSDI '21): throughput times statistical efficiency, and the resulting speedups.

The families are those that Pollux lists, with their shares of its workload: small, medium, large and
extra-large jobs at 72, 20, 6 and 2 per cent. Small and medium jobs have two families each, with equal shares
here. Parameters are chosen, not measured: plausible for one V100 per worker in servers of 8, such that
small models gain little from many GPUs and large ones scale well.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

GPUS_PER_SERVER = 8


@dataclass(frozen=True)
class GoodputModel:
    """Model family: its speed of training, and the worth of a sample in a larger batch."""

    name: str
    share: float
    """Share of the jobs of Pollux's workload."""
    initial_batch_samples: int
    """Smallest batch M_0, whose efficiency is 1."""
    max_batch_samples: int
    """Largest batch over all GPUs; with a larger one, a model would not converge."""
    max_gpu_batch_samples: int
    """Samples that fit into the memory of a GPU. The rest of its part is accumulated."""
    gradient_s: float
    """Fixed time of each pass (alpha_grad)."""
    gradient_per_sample_s: float
    """Time of a pass per sample (beta_grad)."""
    server_sync_s: float
    """Synchronisation of two GPUs of one server (alpha_sync, local)."""
    server_sync_per_gpu_s: float
    """Synchronisation per further GPU (beta_sync, local)."""
    network_sync_s: float
    """Synchronisation between servers (alpha_sync, node)."""
    network_sync_per_gpu_s: float
    """Synchronisation between servers per further GPU (beta_sync, node)."""
    overlap: Literal[1, 2]
    """Exponent gamma with which the times of the last pass and of synchronisation are combined: 1 adds them,
    2 overlaps them in part. Pollux fits it; these two values need no more than a square root."""
    noise_scale_samples: float
    """Gradient noise scale phi: the batch size at which a sample has half of its worth in the smallest
    batches. Pollux measures it as it grows; here it is its mean over the training."""

    def throughput(self, gpus: int, batch_samples: int) -> float:
        """Return the samples per second on so many GPUs (Pollux, section 3.2)."""
        passes = -(-batch_samples // (gpus * self.max_gpu_batch_samples))
        pass_samples = max(batch_samples / (gpus * passes), 1.0)
        pass_s = self.gradient_s + self.gradient_per_sample_s * pass_samples
        sync_s = self._sync_s(gpus)
        last_s = pass_s + sync_s if self.overlap == 1 else math.sqrt(pass_s * pass_s + sync_s * sync_s)
        return batch_samples / ((passes - 1) * pass_s + last_s)

    def efficiency(self, batch_samples: int) -> float:
        """Return the worth of a sample over one in a batch of the initial size (Pollux, section 3.1)."""
        return (self.noise_scale_samples + self.initial_batch_samples) / (
            self.noise_scale_samples + batch_samples
        )

    def goodput(self, gpus: int, batch_samples: int) -> float:
        """Return the samples per second. A sample of a larger batch counts as the part of a sample of the
        initial batch that it is worth."""
        return self.throughput(gpus, batch_samples) * self.efficiency(batch_samples)

    def best_batch_samples(self, gpus: int) -> int:
        """Return the multiple of the initial batch with the highest goodput; of equal ones the smallest."""
        batches = range(self.initial_batch_samples, self.max_batch_samples + 1, self.initial_batch_samples)
        return max(batches, key=lambda batch_samples: self.goodput(gpus, batch_samples))

    def _sync_s(self, gpus: int) -> float:
        """Return the synchronisation time of a step; 0 with one GPU."""
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
    """Return the family at a fraction of all jobs, which are in the order of `FAMILIES`.

    Args:
        fraction: from 0 to 1; if drawn uniformly, the families have their shares.
    """
    bound = 0.0
    for family in FAMILIES:
        bound += family.share
        if fraction < bound:
            return family
    return FAMILIES[-1]


@lru_cache(maxsize=4_096)
def tuned_speedup(family: GoodputModel, max_workers: int, gpus_per_worker: int) -> tuple[float, ...]:
    """Return the speedup of a job whose batch is the best one for each number of workers, as Pollux tunes it.

    It is relative to one worker that is tuned as well. So a tuned job has less remaining work in seconds of
    one worker. To compare the two, start from the running time with the base demand, which is the same.
    """
    curve, first = [0.0], 0.0
    for workers in range(1, max_workers + 1):
        gpus = workers * gpus_per_worker
        goodput = family.goodput(gpus, family.best_batch_samples(gpus))
        first = goodput if workers == 1 else first
        # A worker that would make the job slower idles, so the curve never falls.
        curve.append(max(goodput / first, curve[-1]))
    return tuple(curve)
