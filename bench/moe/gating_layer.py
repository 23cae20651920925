"""Table 5.1: time of a mixture-of-experts layer in which some tokens have one expert instead of two."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn

from bench.figures import Conditions, Measurement, Result, Table, Value
from executors.moe.block import MoeBlock, Router
from executors.moe.experts import Experts
from executors.moe.gating import Gating
from executors.processes.threads import one_thread

SINGLE_SHARES = (0.0, 0.2, 0.5, 0.8, 1.0)
"""Shares of tokens with one expert; 0 is top-2 gating, the reference, and 1 is top-1."""
_WARM_ROUNDS = 2
_FIGURES = (0.8, 0.5)

TABLE_5_1: Mapping[float, tuple[float, float]] = {
    0.0: (1.0, 1.0),
    0.2: (0.9, 0.97),
    0.5: (0.75, 0.92),
    0.8: (0.6, 0.76),
    1.0: (0.5, 0.67),
}
"""Printed computation and running time of the layer relative to top-2, by the share of tokens with one
expert."""


@dataclass(frozen=True)
class LayerSize:
    """A layer and a batch for it."""

    tokens: int
    hidden: int
    intermediate: int
    experts: int
    rounds: int
    """Number of passes of each share, alternating."""

    def __str__(self) -> str:
        return f"{self.tokens:,} tokens, {self.experts} experts of {self.hidden} x {self.intermediate}"


FULL = LayerSize(tokens=1_536, hidden=768, intermediate=3_072, experts=16, rounds=20)
"""Layer and batch of the thesis's sentiment analysis (section 5.4.3), with 64 tokens per sample."""
QUICK = LayerSize(tokens=2_048, hidden=256, intermediate=1_024, experts=16, rounds=7)
CUDA_FULL = LayerSize(tokens=32_768, hidden=1_024, intermediate=4_096, experts=16, rounds=40)
"""Layer of the thesis's text generation."""
CUDA_QUICK = LayerSize(tokens=16_384, hidden=1_024, intermediate=4_096, experts=16, rounds=10)


@dataclass(frozen=True)
class Pass:
    """Times and work of one training pass through the layer."""

    forward_s: float
    backward_s: float
    pairs: int
    """Number of pairs of a token and an expert."""

    @property
    def total_s(self) -> float:
        """Time of both directions."""
        return self.forward_s + self.backward_s


Timed = Callable[[Callable[[], object]], float]
"""Function that returns the time of an action in seconds."""


def measure_gating_layer(conditions: Conditions) -> Result:
    """Measure `gating_layer_ratio_80` and `_50`: the time of the layer with this percentage of tokens at one
    expert, relative to top-2 gating: processor time of one thread, in float32.
    """
    size = QUICK if conditions.quick else FULL
    with one_thread():
        rounds = layer_rounds(size, torch.device("cpu"), torch.float32, conditions.seed)
    return gating_layer(rounds, size, "", "processor time of one thread in float32")


def measure_gating_layer_on_cuda(conditions: Conditions) -> Result:
    """Measure the layer on a GPU, in bfloat16, timed with events."""
    size = CUDA_QUICK if conditions.quick else CUDA_FULL
    rounds = layer_rounds(size, torch.device("cuda"), torch.bfloat16, conditions.seed)
    where = f"bfloat16 on {torch.cuda.get_device_name()}, timed with events"
    return gating_layer(rounds, size, "_cuda", where)


def layer_rounds(
    size: LayerSize, device: torch.device, dtype: torch.dtype, seed: int
) -> list[dict[float, Pass]]:
    """Measure passes of each share of tokens with one expert, in rounds of one each, so that a temporary
    slowdown of the machine affects all. Each round begins with another share than the previous one.
    """
    generator = torch.Generator().manual_seed(seed)
    block = make_block(size, generator).to(device, dtype)
    hidden_states = torch.randn(1, size.tokens, size.hidden, generator=generator).to(device, dtype)
    gradient = torch.randn(hidden_states.shape, generator=generator).to(device, dtype)
    gatings = gatings_by_share(block.router, hidden_states[0])
    timed = _timed_on_cuda if device.type == "cuda" else _timed_on_cpu
    rounds = []
    for number in range(_WARM_ROUNDS + size.rounds):
        first = number % len(SINGLE_SHARES)
        seen = {}
        for share in SINGLE_SHARES[first:] + SINGLE_SHARES[:first]:
            block.gating = gatings[share]
            seen[share] = _pass(block, hidden_states.clone().requires_grad_(), gradient, timed)
        if number >= _WARM_ROUNDS:
            rounds.append(seen)
    return rounds


def make_block(size: LayerSize, generator: torch.Generator) -> MoeBlock:
    """Create a layer as in the thesis's models: experts with biases, a router without."""
    experts = Experts(size.experts, size.hidden, size.intermediate, activation="gelu", bias=True)
    experts.initialize_(0.02, generator)
    router = Router(size.hidden, size.experts)
    with torch.no_grad():
        router.weight.normal_(0.0, 0.02, generator=generator)
    return MoeBlock(router, Gating("top2"), experts)


def gatings_by_share(router: nn.Module, tokens: Tensor) -> dict[float, Gating]:
    """Return gatings that send given shares of tokens to one expert: the threshold is between the gaps P1 -
    P2 of those tokens and of the others.
    """
    with torch.no_grad():
        largest = router(tokens).softmax(dim=-1, dtype=torch.float32).topk(2).values
    gaps = (largest[:, 0] - largest[:, 1]).double().sort().values.tolist()
    gatings = {0.0: Gating("top2"), 1.0: Gating("top1")}
    for share in SINGLE_SHARES[1:-1]:
        last_double = len(gaps) - round(share * len(gaps)) - 1
        below, above = gaps[last_double : last_double + 2]
        gatings[share] = Gating("adaptive", (below + above) / 2, threshold_on="all")
    return gatings


def gating_layer(rounds: Sequence[Mapping[float, Pass]], size: LayerSize, suffix: str, where: str) -> Result:
    """Return the figures and Table 5.1 of the measurements."""
    rows: list[dict[str, Value]] = []
    measurements = []
    for share in SINGLE_SHARES:
        ratio, forward, backward = (
            median(getattr(each[share], of) / getattr(each[0.0], of) for each in rounds)
            for of in ("total_s", "forward_s", "backward_s")
        )
        computation = rounds[0][share].pairs / rounds[0][0.0].pairs
        rows.append(
            {
                "one_expert": f"{share:.0%}",
                "computation": computation,
                "time": ratio,
                "forward": forward,
                "backward": backward,
                "time_ms": 1e3 * median(each[share].total_s for each in rounds),
                "thesis_computation": TABLE_5_1[share][0],
                "thesis_time": TABLE_5_1[share][1],
            }
        )
        if share in _FIGURES:
            measurements.append(
                Measurement(
                    f"gating_layer_ratio_{share * 100:.0f}{suffix}",
                    ratio,
                    f"forward and backward with {computation:.2f} of the pairs of top-2, median of ratios of "
                    f"{len(rounds)} alternating rounds; {size}, {where}; thesis {TABLE_5_1[share][1]}",
                    runs=len(rounds),
                )
            )
    return Result(tuple(measurements), (Table(f"table_5_1{suffix}", rows),))


def _pass(block: MoeBlock, hidden_states: Tensor, gradient: Tensor, timed: Timed) -> Pass:
    """Measure one training pass; previous gradients are dropped, as by an optimizer's `zero_grad`."""
    block.zero_grad()
    outputs: list[Tensor] = []
    forward_s = timed(lambda: outputs.append(block(hidden_states)))
    backward_s = timed(lambda: outputs[0].backward(gradient))
    assert block.last_pass is not None
    return Pass(forward_s, backward_s, len(block.last_pass.routing.pairs_token))


def _timed_on_cpu(action: Callable[[], object]) -> float:
    # Time of this thread, which does all the work: other processes on the core do not count.
    started_s = time.thread_time()
    action()
    return time.thread_time() - started_s


def _timed_on_cuda(action: Callable[[], object]) -> float:
    started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    started.record()
    action()
    ended.record()
    ended.synchronize()
    return float(started.elapsed_time(ended)) / 1e3
