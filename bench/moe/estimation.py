"""Accuracy of forecasts of the experts' popularity (thesis, section 4.7.3.2), on a model trained on real
text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Generator

from bench.figures import Conditions, Measurement, Result, Table, Value
from bench.moe.tiny_model import EXPERTS, LAYERS, TOKENS, LibraryText, TinyModel
from executors.moe.serving.profiling import is_as_forecast
from executors.processes.threads import one_thread
from schemas.experts.workload import PUBLISHED_PATH_LENGTH
from solvers.compiled import Floats, Ints
from solvers.experts.paths import PathProfile, PopularityEstimator
from solvers.experts.schemes import SCHEMES

ESTIMATING = ("balanced", "lina")
"""Schemes: the default counts all experts of a sample path, the published one only the most popular (k =
1)."""
THESIS_4_5 = {1: "31.6 and 28.3", 3: "60.4 and 63.5"}
"""Accuracies of Table 4.5 in % for Transformer-XL and BERT-Large; also 71.4 and 66.0 with paths of 6."""


@dataclass(frozen=True)
class EstimationSizes:
    """Sizes of a form of the part."""

    steps: int
    profiled: int
    """Batches of the profile stage."""
    served: int
    sequences: int
    """Sequences of a batch: 128 are 1,024 tokens for each of 16 devices."""
    path_lengths: tuple[int, ...]


FULL = EstimationSizes(400, 12, 24, 128, (1, 2, 3, 4, 5))
QUICK = EstimationSizes(60, 3, 6, 64, (1, PUBLISHED_PATH_LENGTH))


@dataclass(frozen=True)
class ExpertSelections:
    """Expert selections as batches of (tokens, layers): those of the profile stage, and served ones."""

    profiled: Sequence[Ints]
    served: Sequence[Ints]


def measure_estimation(conditions: Conditions) -> Result:
    """Measure `estimation_accuracy_pct`, and Table 4.5."""
    sizes = QUICK if conditions.quick else FULL
    with one_thread():
        return _measure(sizes, conditions.seed)


def _measure(sizes: EstimationSizes, seed: int) -> Result:
    text = LibraryText(seed)
    model = TinyModel(text, sizes.steps, seed)
    # Different documents, none of them trained on: the profile stage is a service's own first batches.
    half = len(text.held_back) // 2
    draws = Generator().manual_seed(seed)
    profiled = [model.serve(text.held_back[:half], sizes.sequences, draws)[0] for _ in range(sizes.profiled)]
    served = [model.serve(text.held_back[half:], sizes.sequences, draws) for _ in range(sizes.served)]
    loss = float(np.mean([each for _, each in served]))
    selections = ExpertSelections(profiled, [chosen for chosen, _ in served])
    by_layer = {
        (scheme, length): accuracy(selections, scheme, length)
        for scheme in ESTIMATING
        for length in sizes.path_lengths
    }
    trained = ExpertSelections(model.last_selections, selections.served)
    ours = by_layer[ESTIMATING[0], PUBLISHED_PATH_LENGTH][PUBLISHED_PATH_LENGTH:]
    published = by_layer[ESTIMATING[1], PUBLISHED_PATH_LENGTH][PUBLISHED_PATH_LENGTH:]
    note = (
        f"layers and batches whose two most popular experts are forecast in their order, from layer "
        f"{PUBLISHED_PATH_LENGTH + 1} on; all experts of a path count (with the published k = 1: "
        f"{100 * published.mean():.0f} %); {LAYERS} layers of {EXPERTS} experts, {sizes.steps} steps on the "
        f"standard library's text, loss of held-back text {loss:.2f} nats a byte, balance loss "
        f"{model.balance_loss:.2f}, batches of {sizes.sequences * TOKENS:,} tokens"
    )
    return Result(
        (Measurement("estimation_accuracy_pct", 100 * float(ours.mean()), note, sizes.served),),
        (_table_4_5(by_layer), _table_of_origins({"service": selections, "training": trained})),
    )


def accuracy(selections: ExpertSelections, scheme: str, length: int) -> Floats:
    """Return (layers,) the part of the served batches whose top-2 list is forecast correctly.

    Args:
        scheme: it determines which experts of a path count.
        length: length of sample paths.
    """
    layers = selections.served[0].shape[1]
    profile = PathProfile(EXPERTS, layers, length)
    for batch in selections.profiled:
        profile.add(batch)
    estimator = PopularityEstimator(profile, SCHEMES[scheme].top)
    right = [
        [
            is_as_forecast(
                estimator.estimate(layer, batch[:, :layer]), np.bincount(batch[:, layer], minlength=EXPERTS)
            )
            for layer in range(layers)
        ]
        for batch in selections.served
    ]
    found: Floats = np.mean(right, axis=0, dtype=np.float64)
    return found


def _table_4_5(by_layer: dict[tuple[str, int], Floats]) -> Table:
    """Return the accuracies from the layer on at which paths have their full length."""
    rows: list[dict[str, Value]] = [
        {
            "path_length": length,
            "scheme": scheme,
            "accuracy_pct": 100 * float(accuracies[length:].mean()),
            "thesis_pct": THESIS_4_5.get(length) if scheme == "lina" else None,
        }
        for (scheme, length), accuracies in by_layer.items()
    ]
    return Table("table_4_5", rows)


def _table_of_origins(by_origin: Mapping[str, ExpertSelections]) -> Table:
    """Return the accuracies with sample paths of a service's first batches, and of the last steps of the
    training (erratum I4)."""
    length = PUBLISHED_PATH_LENGTH
    rows: list[dict[str, Value]] = [
        {
            "profiled_in": origin,
            "scheme": scheme,
            "accuracy_pct": 100 * float(accuracy(selections, scheme, length)[length:].mean()),
            "tokens": sum(map(len, selections.profiled)),
        }
        for origin, selections in by_origin.items()
        for scheme in ESTIMATING
    ]
    return Table("sample_paths", rows)
