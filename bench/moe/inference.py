"""Lina's inference (thesis, section 4.7.3.1), on batches of skewed routing.

Measured: four ranks serve drawn batches with each compared scheme, by the serving code, over a network of a
stated rate. Modelled: the same decisions at the thesis' sizes, with the measured costs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bench.figures import Conditions, Measurement, Result, Table
from bench.moe.inference_rank import DrawnRouting, RoutingSetting, serve
from bench.moe.model_of_inference import ModelledService, batch_s, layer_costs
from bench.network import run_on_limited_network
from solvers.experts.schemes import SCHEMES

RANKS = 4
_TIMEOUT_S = 900.0
DEFAULT, ONE, EPLB, IDEAL = "balanced", "one_per_device", "eplb", "ideal"
SKEWED = 1.0
"""Least skew of skewed routing: the first of 16 experts has 30 % of the tokens."""
LEAST_TOKENS = 256
"""Least tokens of a batch on each device: with fewer, a layer's fixed costs hide the effect of a placement.
Such batches count only in comparisons with EPLB, and are in the tables."""

_four = partial(RoutingSetting, experts=RANKS, devices=RANKS, layers=4)
MEASURED = (
    _four("mild", tokens=1_024, skew=0.5),
    _four("skewed", tokens=1_024, skew=1.0),
    RoutingSetting("skewed", 8, RANKS, 4, 1_024, 1.0),
    _four("shifting", tokens=1_024, skew=1.0, shift_every=6),
    _four("small batches", tokens=128, skew=1.0),
)
ASIDE = (
    RoutingSetting("aside: more experts", 8, RANKS, 4, 768, 1.25, shift_every=5),
    RoutingSetting("aside: unlike batches", RANKS, RANKS, 4, 512, 0.75, steadiness=8.0),
)
"""Settings that were not used while the default scheme was designed."""
QUICK_MEASURED = (RoutingSetting("skewed", 8, RANKS, 4, 768, 1.0),)

THESIS_REDUCTIONS: Mapping[int, str] = {
    4: "median 1.54 and 1.36",
    16: "median 1.45 and 1.46, 95th percentile 1.82 and 1.68",
}
"""Reductions of Figure 4.16, baseline over Lina, for Transformer-XL and BERT-Large, by number of experts."""


def modelled_settings(quick: bool) -> Iterator[RoutingSetting]:
    """Yield settings with as many experts as devices, as in the thesis, and settings that were put aside."""
    layers = 4 if quick else 8
    for experts in (16,) if quick else (4, 8, 16):
        of_size = partial(RoutingSetting, experts=experts, devices=experts, layers=layers)
        yield of_size("skewed", tokens=1_024, skew=1.0)
        if not quick:
            yield of_size("mild", tokens=1_024, skew=0.5)
            yield of_size("strong", tokens=1_024, skew=1.5)
            yield of_size("shifting", tokens=1_024, skew=1.0, shift_every=8)
            yield of_size("small batches", tokens=64, skew=1.0)
            yield of_size("aside: unlike batches", tokens=512, skew=0.75, steadiness=8.0)
    if not quick:
        yield RoutingSetting("aside: more experts", 32, 16, layers, 768, 1.25, shift_every=5)
        yield RoutingSetting("aside: fewer experts", 8, 16, layers, 256, 1.0)


@dataclass(frozen=True)
class Served:
    """The batches of one setting by one scheme."""

    batches_s: Sequence[float]
    revised: float
    """Part of the layers that were revised."""
    forecast_correctly: float | None
    """Part of the layers with a forecast whose two most popular experts were forecast correctly."""

    def percentile_s(self, percent: float) -> float:
        """Return a percentile of the batches' times."""
        return float(np.percentile(self.batches_s, percent))


Outcomes = Mapping[str, Served]
"""Served batches by scheme."""


def measure_inference(conditions: Conditions) -> Result:
    """Measure Figure 4.16, and compare the default scheme with its rivals."""
    quick = conditions.quick
    settings = QUICK_MEASURED if quick else (*MEASURED, *ASIDE)
    schemes = [DEFAULT, ONE, EPLB, IDEAL] if quick else list(SCHEMES)
    profiled, timed = (2, 8) if quick else (3, 32)
    results, network = run_on_limited_network(
        serve,
        RANKS,
        _TIMEOUT_S,
        settings=[setting.to_json() for setting in settings],
        schemes=schemes,
        profiled=profiled,
        timed=timed,
        seed=conditions.seed,
    )
    measured = {
        setting: {name: _measured(rows) for name, rows in by_scheme.items()}
        for setting, by_scheme in zip(settings, results[0]["settings"], strict=True)
    }
    profiled, timed = (3, 8) if quick else (6, 16)
    modelled = {
        setting: _modelled(results[0]["costs"], schemes, profiled, timed, conditions.seed, setting)
        for setting in modelled_settings(quick)
    }
    return Result(
        (
            *_figures(measured, "", f"measured, {network}"),
            *_figures(modelled, "_model", "model with costs measured here, not measured"),
        ),
        (_figure_4_16("figure_4_16_measured", measured), _figure_4_16("figure_4_16_model", modelled)),
    )


def _measured(rows: Sequence[Mapping[str, Any]]) -> Served:
    layers = [(layer["revised"], layer["foretold"]) for row in rows for layer in row["layers"]]
    return _served([row["batch_s"] for row in rows], layers)


def _modelled(
    measured: Mapping[str, float],
    schemes: Sequence[str],
    profiled: int,
    timed: int,
    seed: int,
    setting: RoutingSetting,
) -> Outcomes:
    costs = layer_costs(measured, setting.experts, setting.devices)
    routing = DrawnRouting(setting, seed)
    batches = [routing.batch(number) for number in range(profiled + timed)]
    outcomes = {}
    for name in schemes:
        service = ModelledService(name, setting.experts, setting.devices, setting.layers, costs)
        service.profile(batches[:profiled])
        served = [service.serve(batch) for batch in batches[profiled:]]
        layers = [(step.is_revised, step.as_forecast) for steps in served for step in steps]
        outcomes[name] = _served([batch_s(steps) for steps in served], layers)
    return outcomes


def _served(batches_s: Sequence[float], layers: Sequence[tuple[bool, bool | None]]) -> Served:
    forecast = [as_forecast for _, as_forecast in layers if as_forecast is not None]
    revised = float(np.mean([is_revised for is_revised, _ in layers]))
    return Served(batches_s, revised, float(np.mean(forecast)) if forecast else None)


def _figures(outcomes: Mapping[RoutingSetting, Outcomes], suffix: str, how: str) -> Iterator[Measurement]:
    skewed = {
        setting: each
        for setting, each in outcomes.items()
        if setting.skew >= SKEWED and setting.tokens >= LEAST_TOKENS
    }
    runs = sum(len(each[DEFAULT].batches_s) for each in skewed.values())
    for name, extreme, word, over, under in (
        ("inference_p95_vs_ideal", max, "worst", DEFAULT, IDEAL),
        ("inference_vs_one_per_device", min, "least", ONE, DEFAULT),
    ):
        value, which = extreme(
            (_ratio(each, over, under, 95), description_of(setting)) for setting, each in skewed.items()
        )
        note = f"95th percentiles of batches, {word} of {len(skewed)} skewed settings ({which}); {how}"
        yield Measurement(f"{name}{suffix}", value, note, runs)
    worst, percent, which = max(
        (_ratio(each, DEFAULT, EPLB, percent), percent, description_of(setting))
        for setting, each in outcomes.items()
        for percent in (50, 95)
    )
    note = (
        f"median and 95th percentile of batches, worst of {len(outcomes)} settings ({which}, "
        f"percentile {percent}); {how}"
    )
    runs = sum(len(each[DEFAULT].batches_s) for each in outcomes.values())
    yield Measurement(f"inference_vs_eplb{suffix}", worst, note, runs)


def description_of(setting: RoutingSetting) -> str:
    return f"{setting.name}, {setting.experts} experts on {setting.devices}"


def _ratio(outcomes: Outcomes, over: str, under: str, percent: float) -> float:
    return outcomes[over].percentile_s(percent) / outcomes[under].percentile_s(percent)


def _figure_4_16(name: str, outcomes: Mapping[RoutingSetting, Outcomes]) -> Table:
    rows = [
        {
            "setting": description_of(setting),
            "scheme": scheme,
            "median_ms": 1_000 * served.percentile_s(50),
            "p95_ms": 1_000 * served.percentile_s(95),
            "median_over_ideal": _ratio(by_scheme, scheme, IDEAL, 50),
            "p95_over_ideal": _ratio(by_scheme, scheme, IDEAL, 95),
            "revised_pct": 100 * served.revised,
            "forecast_pct": None if served.forecast_correctly is None else 100 * served.forecast_correctly,
            "thesis_over_lina": (
                THESIS_REDUCTIONS.get(setting.experts)
                if scheme == ONE and setting.experts == setting.devices
                else None
            ),
        }
        for setting, by_scheme in outcomes.items()
        for scheme, served in by_scheme.items()
    ]
    return Table(name, rows)
