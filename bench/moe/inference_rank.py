"""One rank that serves drawn batches by several schemes in turn, with the serving code.

A matrix product replaces what is not the MoE layer, and the choice of experts is drawn: skewed, different
from batch to batch, and on paths that a profile can learn. All else is as in a service: exchanged counts,
both phases, loaded weights, and rows sent in both directions.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.network import Rank
from executors.gang.folder import JobFolder
from executors.gang.group import ProcessGroup
from executors.gang.meeting import Meeting
from executors.gang.messages import Membership
from executors.moe.experts import Experts
from executors.moe.serving.exchange import RankExchange
from executors.moe.serving.service import ExpertService, ServiceTerms, warm_up
from executors.moe.serving.slots import ExpertSlots
from schemas.experts.workload import PUBLISHED_PATH_LENGTH, PUBLISHED_PER_DEVICE
from solvers.compiled import Floats, Ints
from solvers.experts.schemes import SCHEMES

HIDDEN = 256
INTERMEDIATE = 128
DENSE_PRODUCTS = 2
"""Number of products of all tokens with a square matrix in a layer, besides its experts."""
TIMEOUT_S = 60.0
_REPEATS = 5
_CLOCK_S = 1e-6
"""Resolution of times: whole microseconds."""
_CPU = torch.device("cpu")


FOLLOWS = 0.85
"""Part of the tokens that follow their topic, at each layer."""


@dataclass(frozen=True)
class RoutingSetting:
    """Parameters of the drawn routing, and the number of devices.

    Each token has a topic. There is one topic per expert, and the popularity of topics falls with their rank
    to the power `skew`. At each layer each topic has an expert, in an order drawn by layer: so layers differ
    in their popular experts (Table 4.2). A token goes to the expert of its topic, or, one time in seven, to
    that of another topic of its batch.
    """

    name: str
    experts: int
    devices: int
    layers: int
    tokens: int
    """Tokens of a batch on each device."""
    skew: float
    steadiness: float = 32.0
    """Sum of the parameters of the Dirichlet distribution of topics in a batch: batches are more alike if it
    is larger. With 32, a topic with 30 % of the tokens varies by 8 % of them."""
    shift_every: int = 0
    """Number of batches after which topics change their order of popularity; 0 for never. Paths do not
    change."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, from which the setting can be created again."""
        return dict(vars(self))


class DrawnRouting:
    """The batches of a setting; equal seeds yield equal batches."""

    def __init__(self, setting: RoutingSetting, seed: int) -> None:
        self._setting = setting
        self._seed = seed
        draws = np.random.default_rng((seed, 0))
        self._expert_of = np.stack([draws.permutation(setting.experts) for _ in range(setting.layers)])
        """(layers, topics)"""

    def batch(self, number: int) -> Ints:
        """Return (devices, tokens, layers) the expert of each token at each layer."""
        setting = self._setting
        draws = np.random.default_rng((self._seed, 1, number))
        popularity = draws.dirichlet(setting.steadiness * self._popularity(number) + 1e-9)
        shape = (setting.devices, setting.tokens)
        topics = draws.choice(setting.experts, shape, p=popularity)
        chosen = np.empty((*shape, setting.layers), np.int64)
        for layer in range(setting.layers):
            others = draws.choice(setting.experts, shape, p=popularity)
            here = np.where(draws.random(shape) < FOLLOWS, topics, others)
            chosen[:, :, layer] = self._expert_of[layer][here]
        return chosen

    def _popularity(self, number: int) -> Floats:
        """Return (topics,) the mean popularity at the time of a batch."""
        setting = self._setting
        period = number // setting.shift_every if setting.shift_every else 0
        order = np.random.default_rng((self._seed, 2, period)).permutation(setting.experts)
        weights: Floats = np.power(order + 1.0, -setting.skew)
        popularity: Floats = weights / weights.sum()
        return popularity


def serve(rank: Rank) -> dict[str, Any]:
    """Serve the batches of some settings.

    Arguments of the rank: `settings`, `schemes`, `profiled` and `timed` batches, `seed`.

    Returns:
        `settings`: for each, by scheme, a row for each timed batch. `costs`: see `_Stack.costs`.
    """
    torch.set_num_threads(1)
    inputs = rank.arguments
    settings = [RoutingSetting(**fields) for fields in inputs["settings"]]
    for setting in settings:
        for name in inputs["schemes"]:
            warm_up(_terms(name, inputs["profiled"]), rank.world, setting.experts)
    exchange = _connected(rank)
    stack = _Stack(exchange, inputs["seed"])
    served = [
        stack.serve_all(each, inputs["schemes"], inputs["profiled"], inputs["timed"]) for each in settings
    ]
    return {"settings": served, "costs": stack.costs(settings[0])}


def _connected(rank: Rank) -> RankExchange:
    membership = Membership(generation=1, rank=rank.rank, world=rank.world)
    meeting = None
    while meeting is None:
        meeting = Meeting.attend(JobFolder(rank.scratch / "meeting"), membership, rank.host)
    group = ProcessGroup.form(meeting, _CPU, TIMEOUT_S)
    return RankExchange.connect(group, _CPU, TIMEOUT_S)


def _terms(scheme: str, profiled: int) -> ServiceTerms:
    return ServiceTerms(SCHEMES[scheme], PUBLISHED_PER_DEVICE, PUBLISHED_PATH_LENGTH, profiled)


class _Stack:
    """A stack of layers on this rank. All have equal weights, since the outputs are not used."""

    def __init__(self, exchange: RankExchange, seed: int) -> None:
        self._exchange = exchange
        self._seed = seed
        self._dense = torch.randn(HIDDEN, HIDDEN) / HIDDEN**0.5

    def serve_all(
        self, setting: RoutingSetting, schemes: Sequence[str], profiled: int, timed: int
    ) -> dict[str, list[dict[str, Any]]]:
        """Serve each batch by every scheme in turn, each time beginning with the next scheme."""
        routing = DrawnRouting(setting, self._seed)
        experts = _experts(setting.experts)
        services = {name: self._service(setting, experts, _terms(name, profiled)) for name in schemes}
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in schemes}
        for number in range(profiled + timed):
            chosen = torch.from_numpy(routing.batch(number)[self._exchange.rank])
            first = number % len(schemes)
            for name in (*schemes[first:], *schemes[:first]):
                row = self._serve(services[name], chosen)
                if number >= profiled:
                    rows[name].append(row)
        for service in services.values():
            service.close()
        return rows

    def _service(self, setting: RoutingSetting, experts: Experts, terms: ServiceTerms) -> ExpertService:
        layers = [ExpertSlots(experts, terms.most_experts_per_device, _CPU) for _ in range(setting.layers)]
        return ExpertService(self._exchange, layers, terms)

    @torch.inference_mode()
    def _serve(self, service: ExpertService, chosen: Tensor) -> dict[str, Any]:
        """Serve one batch; all ranks begin together.

        Args:
            chosen: (tokens, layers)
        """
        hidden = torch.ones(len(chosen), HIDDEN)
        self._exchange.gather("the beginning of a timed batch", np.zeros(1, np.int64))
        began_s = time.monotonic()
        service.begin(len(chosen))
        for layer in range(service.layer_count):
            hidden = self._products(hidden)
            order = torch.argsort(chosen[:, layer], stable=True)
            counts = torch.bincount(chosen[:, layer], minlength=service.expert_count)
            outputs = service.apply(layer, hidden.index_select(0, order), counts, chosen[:, layer])
            hidden = torch.zeros_like(hidden).index_add(0, order, outputs)
        duration_s = time.monotonic() - began_s
        service.end()
        times_us = self._exchange.gather("the end of a timed batch", np.array([round(1e6 * duration_s)]))
        return {
            "batch_s": int(times_us.max()) / 1e6,
            "layers": [
                {
                    "foretold": each.is_as_forecast,
                    "revised": each.is_revised,
                    "loads": each.loads,
                    "busiest": each.busiest_tokens,
                    "scheduling_s": each.scheduling_s,
                    "swap_s": each.swap_wait_s,
                    "all_to_all_s": each.all_to_all_s,
                    "experts_s": each.experts_s,
                }
                for each in service.passages
            ],
        }

    @torch.inference_mode()
    def costs(self, setting: RoutingSetting) -> dict[str, float]:
        """Return the times of the steps of a layer, on all ranks at once: medians, of the slowest rank.

        `all_to_all_s`: of one row to each rank. `row_s`: of each further row that a rank sends and receives.
        `expert_s`, `token_s`: of an expert, and of each row. `swap_s`: of loading an expert. `dense_s`: of
        the replacement for the rest of a layer. `exchange_s`: of exchanging counts.
        """
        world, tokens = self._exchange.world, setting.tokens
        slots = ExpertSlots(_experts(setting.experts), PUBLISHED_PER_DEVICE, _CPU)

        def send(rows: int) -> None:
            self._exchange.send_rows("rows", torch.ones(rows * world, HIDDEN), [rows] * world, [rows] * world)

        def compute(rows: int, used: int) -> None:
            counts = torch.zeros(PUBLISHED_PER_DEVICE, dtype=torch.int64)
            counts[:used] = rows // used
            slots.compute(torch.ones(int(counts.sum()), HIDDEN), counts)

        first = 0

        def swap() -> None:
            nonlocal first
            slots.hold([first % setting.experts])
            first += 1

        def dense() -> None:
            hidden = self._products(torch.ones(tokens, HIDDEN))
            order = torch.argsort(torch.arange(tokens) % setting.experts, stable=True)
            rows = hidden.index_select(0, order)
            torch.zeros_like(hidden).index_add(0, order, rows)

        numbers = np.zeros(2 * setting.experts + 2, np.int64)
        one_row_s, many_rows_s = self._median_s(lambda: send(1)), self._median_s(lambda: send(tokens))
        one_expert_s = self._median_s(lambda: compute(tokens, 1))
        two_experts_s = self._median_s(lambda: compute(tokens, 2))
        expert_s = max(two_experts_s - one_expert_s, 0.0)
        return {
            "all_to_all_s": one_row_s,
            # Without a limit on the network, it may be less than the noise.
            "row_s": max(many_rows_s - one_row_s, _CLOCK_S) / ((tokens - 1) * (world - 1)),
            "expert_s": expert_s,
            "token_s": max(one_expert_s - expert_s, 0.0) / tokens,
            "swap_s": self._median_s(swap),
            "dense_s": self._median_s(dense),
            "exchange_s": self._median_s(lambda: self._exchange.gather("counts", numbers)),
        }

    def _products(self, hidden: Tensor) -> Tensor:
        for _ in range(DENSE_PRODUCTS):
            hidden = hidden @ self._dense
        return hidden

    def _median_s(self, step: Callable[[], object]) -> float:
        times_us = []
        for _ in range(_REPEATS):
            self._exchange.gather("the beginning of a timed step", np.zeros(1, np.int64))
            began_s = time.monotonic()
            step()
            duration_us = round(1e6 * (time.monotonic() - began_s))
            times_us.append(
                int(self._exchange.gather("the end of a timed step", np.array([duration_us])).max())
            )
        return float(np.median(times_us)) / 1e6


def _experts(count: int) -> Experts:
    experts = Experts(count, HIDDEN, INTERMEDIATE, activation="relu")
    experts.initialize_(HIDDEN**-0.5, torch.Generator().manual_seed(0))
    return experts
