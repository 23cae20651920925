"""A model of a training step of expert parallelism: a device that computes, and a link that both kinds of
collectives share. All ranks are alike, so it follows one of them.

It is what stands for sizes that a single machine cannot show. Its costs are measured ones, or published.
"""

from collections import deque
from dataclasses import dataclass, replace

from bench.moe.training_shape import Shape, Variant
from bench.moe.training_steps import Interval, StepTimes, common_s, merged, total_s

BACKWARD_WORK = 2.0
"""Computation of a backward pass, in forward passes."""


@dataclass(frozen=True)
class Costs:
    """Of one layer, in seconds; of communication, how long all of a rank's bytes would take on its link.

    Attributes:
        dense_s: forward pass of all but the experts.
        experts_s: forward pass of the experts.
        exchanged_s: rows of a rank for all experts, those of its own too.
        dense_gradients_s, expert_gradients_s: gradients that all ranks average; those of one expert.
        micro_op_s: of any micro-op, beside its bytes.
        slowdown: of an all-to-all while an allreduce runs; what it loses the allreduce gets.
        bucket_layers: layers whose gradients are averaged together.
        parts: micro-ops into which such a bucket is cut, where a variant cuts at all.
    """

    dense_s: float
    experts_s: float
    exchanged_s: float
    dense_gradients_s: float
    expert_gradients_s: float
    micro_op_s: float
    slowdown: float
    bucket_layers: int
    parts: int


def costs_of(
    shape: Shape, world: int, baseline: StepTimes, slowdown: float, micro_op_s: float, parts: int = 1
) -> Costs:
    """A model's costs from a measured step without chunks, under any order of its collectives.

    Args:
        world: ranks that it was measured on, one expert on each.
        slowdown: of an all-to-all beside an allreduce.
        micro_op_s: what a micro-op takes beside its bytes.
        parts: micro-ops of a bucket that is cut.
    """
    exchange_s = baseline.all_to_all_forward_s / shape.layers / 2 - micro_op_s
    exchanged_s = exchange_s * world / (world - 1)
    byte_s = exchanged_s / shape.exchanged_bytes
    return Costs(
        dense_s=max(0.0, baseline.forward_s - baseline.layers_forward_s) / shape.layers,
        experts_s=max(0.0, baseline.layers_forward_s - baseline.all_to_all_forward_s) / shape.layers,
        exchanged_s=exchanged_s,
        dense_gradients_s=byte_s * shape.dense_bytes,
        expert_gradients_s=byte_s * shape.expert_bytes,
        micro_op_s=micro_op_s,
        slowdown=slowdown,
        bucket_layers=max(1, round(shape.bucket_bytes / shape.dense_bytes)),
        parts=parts,
    )


def modelled_step(costs: Costs, world: int, layers: int, variant: Variant) -> StepTimes:
    """A step with as many experts in a layer as ranks.

    Args:
        variant: that it is cut says that each bucket is in `costs.parts` parts; lanes do not count.
    """
    run = _Run(costs, world, variant, costs.parts if variant.is_cut else 1)
    for _ in range(layers):
        run.compute(costs.dense_s)
        run.layer("forward", 1.0)
    turned_s = run.now_s
    gathered = 0
    for layer in reversed(range(layers)):
        run.layer("backward", BACKWARD_WORK)
        run.average_experts()
        run.compute(BACKWARD_WORK * costs.dense_s)
        gathered += 1
        if gathered == costs.bucket_layers or layer == 0:
            run.average_dense(gathered)
            gathered = 0
    run.finish()
    return run.times(turned_s)


@dataclass
class _Op:
    left_s: float
    submitted_s: float
    completed_s: float | None = None


class _Run:
    """The state of a step: time, and what is queued on the link."""

    def __init__(self, costs: Costs, world: int, variant: Variant, parts: int) -> None:
        self.now_s = 0.0
        self._costs = costs
        self._world = world
        self._variant = variant
        self._parts = parts
        self._exchanges: deque[_Op] = deque()
        self._averages: deque[_Op] = deque()
        self._averaging: _Op | None = None
        self._is_expected = False
        self._all_exchanges: dict[str, list[_Op]] = {"forward": [], "backward": []}
        self._all_averages: list[_Op] = []
        self._averaging_s = 0.0
        self._layers_s = {"forward": 0.0, "backward": 0.0}
        self._computed: list[Interval] = []

    def compute(self, seconds: float) -> None:
        """Have the device busy."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self._advance(end_s)

    def layer(self, direction: str, work: float) -> None:
        """Tokens go to their experts, which compute, and back."""
        began_s = self.now_s
        chunks = self._variant.chunks
        group_size = self._world // self._variant.per_device
        sent_s = self._costs.exchanged_s * (group_size - 1) / group_size / chunks

        def exchange() -> _Op | None:
            if group_size == 1:
                return None
            op = _Op(sent_s + self._costs.micro_op_s, self.now_s)
            self._exchanges.append(op)
            self._all_exchanges[direction].append(op)
            return op

        arriving = [exchange() for _ in range(chunks)]
        self._is_expected = group_size > 1
        returning = []
        for op in arriving:
            self._wait(op)
            computing_s = self.now_s
            self.compute(work * self._costs.experts_s / chunks)
            self._computed.append((computing_s, self.now_s))
            returning.append(exchange())
        self._is_expected = False
        for op in returning:
            self._wait(op)
        self._layers_s[direction] += self.now_s - began_s

    def average_experts(self) -> None:
        """Gradients of the experts that a device hosts, over the devices that host them too."""
        replicas = self._variant.per_device
        if replicas > 1:
            bytes_s = replicas * self._costs.expert_gradients_s
            self._average(bytes_s * 2 * (replicas - 1) / replicas)

    def average_dense(self, layers: int) -> None:
        """Gradients of some layers, over all devices."""
        self._average(layers * self._costs.dense_gradients_s * 2 * (self._world - 1) / self._world)

    def finish(self) -> None:
        """Wait until all is averaged."""
        for op in list(self._all_averages):
            self._wait(op)

    def times(self, turned_s: float) -> StepTimes:
        """What it took, once it is over."""
        exchanged = {
            direction: merged((op.submitted_s, op.completed_s or 0.0) for op in ops)
            for direction, ops in self._all_exchanges.items()
        }
        both = merged([*exchanged["forward"], *exchanged["backward"]])
        span_s = 0.0
        if self._all_averages:
            span_s = self.now_s - self._all_averages[0].submitted_s
        return StepTimes(
            step_s=self.now_s,
            forward_s=turned_s,
            backward_s=self.now_s - turned_s,
            layers_forward_s=self._layers_s["forward"],
            layers_backward_s=self._layers_s["backward"],
            all_to_all_forward_s=total_s(exchanged["forward"]),
            all_to_all_backward_s=total_s(exchanged["backward"]),
            allreduce_s=self._averaging_s,
            allreduce_span_s=span_s,
            efficiency=common_s(both, merged(self._computed)) / total_s(both) if both else 0.0,
        )

    def _average(self, seconds: float) -> None:
        for _ in range(self._parts):
            op = _Op(seconds / self._parts + self._costs.micro_op_s, self.now_s)
            self._averages.append(op)
            self._all_averages.append(op)

    def _wait(self, op: _Op | None) -> None:
        while op is not None and op.completed_s is None:
            self._advance(float("inf"))

    def _running(self) -> list[tuple[_Op, deque[_Op], float]]:
        """What is under way, its queue, and its share of the link."""
        if not self._variant.is_scheduled:
            beside = bool(self._exchanges and self._averages)
            share = 1 / self._costs.slowdown if beside else 1.0
            running = []
            if self._exchanges:
                running.append((self._exchanges[0], self._exchanges, share))
            if self._averages:
                running.append((self._averages[0], self._averages, 1 - share if beside else 1.0))
            return running
        if self._averaging is None and self._averages and not self._exchanges and not self._is_expected:
            self._averaging = self._averages[0]
        if self._averaging is not None:
            return [(self._averaging, self._averages, 1.0)]
        return [(self._exchanges[0], self._exchanges, 1.0)] if self._exchanges else []

    def _advance(self, until_s: float) -> None:
        """To when the next micro-op ends, or until then."""
        running = self._running()
        ends_s = [self.now_s + op.left_s / share for op, _, share in running if share > 0]
        next_s = min([until_s, *ends_s])
        passed_s = next_s - self.now_s
        self.now_s = next_s
        for op, queue, share in running:
            op.left_s -= passed_s * share
            if queue is self._averages:
                self._averaging_s += passed_s
            if op.left_s <= 1e-12:
                op.completed_s = self.now_s
                queue.popleft()
                if op is self._averaging:
                    self._averaging = None


def fitted(
    costs: Costs, world: int, layers: int, variant: Variant, step_s: float, all_to_all_s: float
) -> Costs:
    """Costs under which a step takes as long as was published, and its all-to-alls as well.

    The other costs keep their proportion to the exchanged bytes; what is left is dense computation.

    Args:
        costs: those proportions.
        variant: which was published.

    Raises:
        ValueError: no dense computation is left.
    """
    low, high = 0.0, all_to_all_s / layers / costs.exchanged_s
    fit = costs
    for _ in range(40):
        middle = (low + high) / 2
        fit = _with_step(_scaled(costs, middle), world, layers, variant, step_s)
        if modelled_step(fit, world, layers, variant).all_to_all_s < all_to_all_s:
            low = middle
        else:
            high = middle
    if fit.dense_s <= 0.0:
        raise ValueError(
            f"a step of {step_s:g} s with all-to-alls of {all_to_all_s:g} s has no room to compute"
        )
    return fit


def _scaled(costs: Costs, factor: float) -> Costs:
    return replace(
        costs,
        experts_s=factor * costs.experts_s,
        exchanged_s=factor * costs.exchanged_s,
        dense_gradients_s=factor * costs.dense_gradients_s,
        expert_gradients_s=factor * costs.expert_gradients_s,
        micro_op_s=factor * costs.micro_op_s,
    )


def _with_step(costs: Costs, world: int, layers: int, variant: Variant, step_s: float) -> Costs:
    low, high = 0.0, step_s / layers
    for _ in range(40):
        middle = (low + high) / 2
        took_s = modelled_step(replace(costs, dense_s=middle), world, layers, variant).step_s
        low, high = (middle, high) if took_s < step_s else (low, middle)
    return replace(costs, dense_s=low)
