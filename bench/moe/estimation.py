"""How well the experts' popularity is foretold (thesis, section 4.7.3.2), on a model trained on real text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Generator

from bench.charts import Bars
from bench.figures import Conditions, Measurement, Result, Table
from bench.moe.calibration import calibrated, layer_costs
from bench.moe.inference import IDEAL, of_steps
from bench.moe.model_of_inference import ModelledService
from bench.moe.tiny_model import EXPERTS, LAYERS, TOKENS, TinyModel
from bench.moe.tiny_text import Text
from executors.moe.serving.profiling import is_foretold
from executors.processes.threads import one_thread
from schemas.experts.workload import PUBLISHED_PATH_LENGTH
from solvers.compiled import Floats, Ints
from solvers.experts.paths import PathProfile, PopularityEstimator
from solvers.experts.placement import Demand
from solvers.experts.schemes import SCHEMES

DEVICES = 16
WAYS = ("balanced", "lina")
"""The default counts all experts of a sample path, the published way only the most popular (k = 1)."""
THESIS_4_5 = {1: "31.6 and 28.3", 3: "60.4 and 63.5"}
"""Table 4.5: accuracy in % of Transformer-XL and BERT-Large; also 71.4 and 66.0 with paths of 6."""
THESIS_4_9 = {1: 41.94, 2: 54.59}
"""Figure 4.9: % of tokens by k, over all layers."""


@dataclass(frozen=True)
class Sizes:
    """Of a form of the benchmark."""

    steps: int
    profiled: int
    """Batches of the profile stage."""
    served: int
    sequences: int
    """Of a batch: 128 are 1,024 tokens for each of 16 devices."""
    path_lengths: tuple[int, ...]


FULL = Sizes(400, 12, 24, 128, (1, 2, 3, 4, 5))
QUICK = Sizes(60, 3, 6, 64, (1, PUBLISHED_PATH_LENGTH))


@dataclass(frozen=True)
class Selections:
    """What was served: batches of (tokens, layers), those of the profile stage, and others."""

    profiled: Sequence[Ints]
    served: Sequence[Ints]


def measure_estimation(conditions: Conditions) -> Result:
    """`estimation_accuracy_pct`, Figures 4.9 and 4.19, and Tables 4.2 and 4.5."""
    sizes = QUICK if conditions.quick else FULL
    with one_thread():
        return _measure(sizes, conditions.seed)


def _measure(sizes: Sizes, seed: int) -> Result:
    text = Text(seed)
    model = TinyModel(text, sizes.steps, seed)
    # Different documents, none of which was trained on: the profile stage is a service's own first batches.
    half = len(text.held_back) // 2
    draws = Generator().manual_seed(seed)
    profiled = [model.serve(text.held_back[:half], sizes.sequences, draws)[0] for _ in range(sizes.profiled)]
    served = [model.serve(text.held_back[half:], sizes.sequences, draws) for _ in range(sizes.served)]
    loss = float(np.mean([each for _, each in served]))
    selections = Selections(profiled, [chosen for chosen, _ in served])
    by_layer = {
        (way, length): accuracy(selections, way, length) for way in WAYS for length in sizes.path_lengths
    }
    ours = by_layer[WAYS[0], PUBLISHED_PATH_LENGTH][PUBLISHED_PATH_LENGTH:]
    published = by_layer[WAYS[1], PUBLISHED_PATH_LENGTH][PUBLISHED_PATH_LENGTH:]
    note = (
        f"layers and batches whose two most popular experts are foretold in their order, from layer "
        f"{PUBLISHED_PATH_LENGTH + 1} on; all experts of a path count (with the published k = 1: "
        f"{100 * published.mean():.0f} %); {LAYERS} layers of {EXPERTS} experts, {sizes.steps} steps on the "
        f"standard library's text, loss of held-back text {loss:.2f} nats a byte, balance loss "
        f"{model.balance_loss:.2f}, batches of {sizes.sequences * TOKENS:,} tokens"
    )
    return Result(
        (Measurement("estimation_accuracy_pct", 100 * float(ours.mean()), note, sizes.served),),
        (
            _figure_4_9(selections),
            _figure_4_19(by_layer),
            _table_4_2(selections),
            _table_4_5(selections, by_layer, seed),
        ),
    )


def accuracy(selections: Selections, way: str, length: int) -> Floats:
    """(layers,) the part of the served batches whose top-2 list is foretold.

    Args:
        way: scheme, of which experts of a path count.
        length: of sample paths.
    """
    layers = selections.served[0].shape[1]
    profile = PathProfile(EXPERTS, layers, length)
    for batch in selections.profiled:
        profile.add(batch)
    estimator = PopularityEstimator(profile, SCHEMES[way].top)
    right = [
        [
            is_foretold(
                estimator.estimate(layer, batch[:, :layer]), np.bincount(batch[:, layer], minlength=EXPERTS)
            )
            for layer in range(layers)
        ]
        for batch in selections.served
    ]
    found: Floats = np.mean(right, axis=0, dtype=np.float64)
    return found


def following(batches: Sequence[Ints], layer: int, top: int) -> float:
    """The part of a layer's tokens that choose, at the next, one of the `top` experts that most tokens of the
    same expert choose; the mean over experts with any."""
    counts = np.zeros((EXPERTS, EXPERTS), np.int64)
    for batch in batches:
        np.add.at(counts, (batch[:, layer], batch[:, layer + 1]), 1)
    used = counts[counts.sum(axis=1) > 0]
    most = np.sort(used, axis=1)[:, ::-1][:, :top].sum(axis=1)
    return float((most / used.sum(axis=1)).mean())


def _figure_4_9(selections: Selections) -> Table:
    rows = [
        (layer + 1, f"k = {top}", 100 * following(selections.served, layer, top), THESIS_4_9[top])
        for layer in range(LAYERS - 1)
        for top in THESIS_4_9
    ]
    columns = ("layer", "top", "tokens that follow, %", "thesis, mean, %")
    label = "tokens with one of the group's top-k experts at the next layer, %"
    return Table("figure_4_9", columns, rows, Bars("layer", "top", columns[2], None, label))


def _figure_4_19(by_layer: dict[tuple[str, int], Floats]) -> Table:
    rows = [
        (layer + 1, way, 100 * float(by_layer[way, PUBLISHED_PATH_LENGTH][layer]))
        for layer in range(LAYERS)
        for way in WAYS
    ]
    columns = ("layer", "estimate", "accuracy, %")
    label = "batches whose two most popular experts are foretold, %"
    return Table("figure_4_19", columns, rows, Bars("layer", "estimate", columns[2], None, label))


def _table_4_2(selections: Selections) -> Table:
    counted = np.sum(
        [
            [np.bincount(batch[:, layer], minlength=EXPERTS) for layer in range(LAYERS)]
            for batch in selections.served
        ],
        axis=0,
    )
    rows = [
        (
            layer + 1,
            str(place + 1),
            expert,
            100 * float(counted[layer][expert] / counted[layer].sum()),
        )
        for layer in range(LAYERS)
        for place, expert in enumerate(Demand.of_counts(counted[layer]).top(4))
    ]
    columns = ("layer", "place", "expert", "tokens, %")
    label = "tokens of the four most popular experts, %"
    return Table("table_4_2", columns, rows, Bars("layer", "place", "tokens, %", None, label))


def _table_4_5(selections: Selections, by_layer: dict[tuple[str, int], Floats], seed: int) -> Table:
    """Accuracy from the layer on at which paths have their length; times are of a model."""
    measured, _ = calibrated(seed)
    costs = layer_costs(measured, EXPERTS, DEVICES)

    def percentiles(scheme: str, length: int) -> tuple[float, float, float]:
        service = ModelledService(scheme, EXPERTS, DEVICES, LAYERS, costs, length)
        service.profile([_on_devices(batch) for batch in selections.profiled])
        served = of_steps([service.serve(_on_devices(batch)) for batch in selections.served])
        return served.percentile_s(50), served.percentile_s(95), 100 * served.revised

    ideal_s = percentiles(IDEAL, PUBLISHED_PATH_LENGTH)

    def rows() -> Iterator[tuple[float | str | None, ...]]:
        for way in WAYS:
            for length in dict.fromkeys(length for _, length in by_layer):
                median_s, p95_s, revised_pct = percentiles(way, length)
                yield (
                    length,
                    way,
                    median_s / ideal_s[0],
                    p95_s / ideal_s[1],
                    revised_pct,
                    100 * float(by_layer[way, length][length:].mean()),
                    THESIS_4_5.get(length) if way == "lina" else None,
                )

    columns = (
        "path length",
        "scheme",
        "median over ideal (model)",
        "p95 over ideal (model)",
        "placed anew, %",
        "accuracy, %",
        "thesis, accuracy, %",
    )
    chart = Bars("path length", "scheme", "accuracy, %", None, "estimation accuracy, %")
    return Table("table_4_5", columns, list(rows()), chart)


def _on_devices(batch: Ints) -> Ints:
    """(devices, tokens, layers): as many sequences on each device."""
    return batch.reshape(DEVICES, -1, batch.shape[1])
