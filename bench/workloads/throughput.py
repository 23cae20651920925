"""A model, not a measurement, of the speed and memory of LoRA fine-tuning of GPT-2 (erratum P7).

A node trains its tasks in fused steps, and the auction plans with *full* steps of `FULL_STEP_SEQUENCES`, so
that a planned speed holds with any neighbours. A step of n sequences runs at

    throughput(n) = peak * n / (n + HALF_SPEED_SEQUENCES)

sequences per second: a roofline with a fixed part per step. A full node does C_kp = throughput(full step); a
task that contributes b sequences to each full step does s_ik = C_kp * b / `FULL_STEP_SEQUENCES`. All samples
have `SEQUENCE_LENGTH` tokens, because C_kp in samples assumes that all samples cost the same. The rank costs
less than 3 % of the speed, so all tasks are planned at the speed of the largest.

The form matches real measurements: the seconds per step of RoBERTa-base (125 M) on one A100, for 20 batch
sizes from 2 to 76, within 0.7 %, with a peak of 198 sequences per second and a half-speed batch of 2.24.
"""

from dataclasses import dataclass
from typing import Protocol

PARAMETERS = 124_439_808
LAYERS = 12
HIDDEN_FEATURES = 768
INNER_FEATURES = 3_072
VOCABULARY_SIZE = 50_257
"""Dimensions of GPT-2, the smallest of its family; input and output share the word matrix."""

SEQUENCE_LENGTH = 1_024
"""Tokens per sample: GPT-2's whole context, into which short texts are packed."""

RANKS = (4, 8, 16, 32, 64)
TARGET_MODULES = ("c_attn",)
"""Modules with LoRA: the joint projection to queries, keys and values, PEFT's default for GPT-2."""

FLOPS_PER_S = {"A100": 312e12, "A40": 149.7e12}
"""Dense bfloat16 peaks as published by the maker."""

UTILISATION = 0.0275
"""Reached part of the published peak. Chosen, not measured. With it, the paper's arrival rates (30, 50 and 80
per slot) load 100 mixed nodes to about 2, 3.2 and 5.2 times their compute. At this load, a baseline that
admits every job that fits serves about the same small share of the value as in the paper (Figure 8).
Well-tuned kernels reach many times as much, and would leave these fleets idle, with nothing to schedule."""

HALF_SPEED_SEQUENCES = 2.24
"""Fixed part of a step, in sequences: as measured for RoBERTa-base, a model of the same size."""

FULL_STEP_SEQUENCES = 144
"""Sequences in a full step: about as many as an A100 holds at once."""

MEMORY_GIB = {"A100": 80.0, "A40": 48.0}
POWER_KW = {"A100": 0.4, "A40": 0.3}
"""Published power limits: of the SXM module, and of the A40."""

BASE_MEMORY_GIB = 1.0
"""r_b: the weights in bfloat16 (0.23 GiB); the rest is assumed for the process's context and libraries."""

TASK_MEMORY_GIB = 0.6
"""Memory of a task besides its batch; the same profile of RoBERTa-base has 0.62 GiB at batch 0."""

ALLOCATOR_FACTOR = 1.2
"""Allocated over counted memory: blocks, fragments and temporary tensors. Assumed; it yields 0.53 GiB per
sequence, and the profile of RoBERTa-base has 0.51."""

_BYTES_PER_GIB = 2**30
_ACTIVATION_BYTES = 2
_LOG_PROBABILITY_BYTES = 4
_ADAPTER_BYTES_PER_PARAMETER = 16


@dataclass(frozen=True)
class LoraShape:
    """Properties of a LoRA task that determine its speed and its memory."""

    batch_size: int
    """Its sequences in each full step."""
    accumulation: int
    """Number of sequential parts of its batch: only one part's activations are held at once."""
    rank: int


class Throughput(Protocol):
    """Speed and memory of nodes and of tasks on them."""

    base_memory_gib: float
    """r_b: memory of the base model on each node."""

    def node_samples_per_s(self, gpu_type: str) -> float:
        """Return C_kp per second."""

    def task_samples_per_s(self, gpu_type: str, shape: LoraShape) -> float:
        """Return s_ik per second."""

    def task_memory_gib(self, shape: LoraShape) -> float:
        """Return r_i."""


def adapter_parameters(rank: int) -> int:
    """Return the trained parameters: two low-rank matrices per layer, from h to r and from r to 3 h."""
    return LAYERS * rank * (HIDDEN_FEATURES + 3 * HIDDEN_FEATURES)


def flops_per_sample(rank: int) -> float:
    """Return the operations of one forward and backward pass.

    Per token: 2 per parameter forward, and 2 backward, since a frozen weight needs no gradient of its own; 6
    per parameter of the adapter; and for attention 12 x layers x tokens x h, forward and backward.
    """
    attention = 12 * LAYERS * SEQUENCE_LENGTH * HIDDEN_FEATURES
    per_token = 4 * PARAMETERS + 6 * adapter_parameters(rank) + attention
    return float(SEQUENCE_LENGTH * per_token)


def throughput_samples_per_s(gpu_type: str, sequences: float, rank: int = RANKS[-1]) -> float:
    """Return the total speed of a step with a number of sequences."""
    peak = FLOPS_PER_S[gpu_type] * UTILISATION / flops_per_sample(rank)
    return peak * sequences / (sequences + HALF_SPEED_SEQUENCES)


class ModelledThroughput:
    """The model of GPT-2."""

    base_memory_gib = BASE_MEMORY_GIB

    def node_samples_per_s(self, gpu_type: str) -> float:
        """Return C_kp per second, of full steps."""
        return throughput_samples_per_s(gpu_type, FULL_STEP_SEQUENCES)

    def task_samples_per_s(self, gpu_type: str, shape: LoraShape) -> float:
        """Return s_ik per second: a task's part of full steps."""
        return self.node_samples_per_s(gpu_type) * shape.batch_size / FULL_STEP_SEQUENCES

    def task_memory_gib(self, shape: LoraShape) -> float:
        """Return r_i, as in solvers/auction/market/demand.py but for GPT-2's layers, plus the allocator's
        overhead.

        Per token and layer: inputs of both norms, query and attention output (4 h), keys and values (2 h),
        and the inner layer before and after its activation (2 i); per token, the log-probabilities of all
        words.
        """
        kept = LAYERS * (6 * HIDDEN_FEATURES + 2 * INNER_FEATURES) * _ACTIVATION_BYTES
        per_token = kept + _LOG_PROBABILITY_BYTES * VOCABULARY_SIZE
        activations = shape.batch_size / shape.accumulation * SEQUENCE_LENGTH * per_token
        adapter = _ADAPTER_BYTES_PER_PARAMETER * adapter_parameters(shape.rank)
        return TASK_MEMORY_GIB + ALLOCATOR_FACTOR * (activations + adapter) / _BYTES_PER_GIB


MODELLED = ModelledThroughput()
