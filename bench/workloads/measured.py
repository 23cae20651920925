"""Measured speed and memory of fine-tuning, in place of the model of `throughput.py` (erratum P7).

The measurements are of RoBERTa-base (125 M), a model of GPT-2's size, trained in full on one A100, as
TitanSched (MIT) publishes them. Section 5.1 records the samples per slot by batch size, so s_ik is the speed
of a task that trains alone with its micro-batch, and C_kp that of the largest measured one. A task then
takes 66 to 96 % of a node, and hardly any two fit together.

The length of the measured sequences is not published. So only the course over micro-batches is measured, and
a full node is as fast as in the model: a fleet has the same load.
"""

from types import MappingProxyType

from bench.workloads.throughput import MODELLED, LoraShape

STEP_S = MappingProxyType(
    {
        4: 0.03158, 6: 0.04165, 8: 0.05172, 12: 0.07167, 16: 0.09184, 24: 0.13312, 32: 0.17347, 76: 0.39492,
    }
)  # fmt: skip
"""Seconds per step by micro-batch on an A100, as measured."""
MEMORY_GIB_PER_SEQUENCE = 0.51303
"""Slope of a line through the memory of 18 micro-batches from 6 to 76, which it matches within 0.2 %."""


class MeasuredThroughput:
    """The measured course, on the nodes of the model."""

    base_memory_gib = 0.6442
    """Memory at micro-batch 0, by the same line."""

    def node_samples_per_s(self, gpu_type: str) -> float:
        """Return C_kp per second."""
        return MODELLED.node_samples_per_s(gpu_type)

    def task_samples_per_s(self, gpu_type: str, shape: LoraShape) -> float:
        """Return s_ik per second, of the task alone.

        Raises:
            KeyError: its micro-batch was not measured.
        """
        part = _samples_per_s(shape.batch_size // shape.accumulation) / _samples_per_s(max(STEP_S))
        return part * self.node_samples_per_s(gpu_type)

    def task_memory_gib(self, shape: LoraShape) -> float:
        """Return r_i: the memory of a micro-batch above that of the base model."""
        return MEMORY_GIB_PER_SEQUENCE * shape.batch_size / shape.accumulation


def _samples_per_s(micro_batch: int) -> float:
    return micro_batch / STEP_S[micro_batch]


MEASURED = MeasuredThroughput()
