"""Skill of the lender's forecasts over persistence, on real traces of inference that it was not chosen on."""

import csv
import gzip
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.figures import Conditions, Measurement, Result, Table, Value
from infra.lender.forecast import Forecaster, LastValue, SeasonalNaive, Selection, Trainer
from infra.lender.history import LoadHistory
from infra.workloads.elastic.loads import INTERVAL_S, PEAK, generate_load

SERVEGEN = "infer_load_servegen.csv.gz"
ALIBABA = "infer_load_alibaba_genai2026.csv.gz"
AZURE = "infer_req_azure2023_conv.csv.gz"
_SERVEGEN_S = 600.0
_AZURE_S = 10.0
"""Interval of the one series that is shorter than a day: an hour of requests."""
_START_S = 86_400.0 * 19_000
"""A midnight."""
_GENERATED_DAYS = 6
_RETRAIN_S = 86_400.0
_TRAININGS = 8
"""Fewest trainings of a series."""
_TAIL = 0.95


@dataclass(frozen=True)
class LoadSeries:
    """Loads at equal intervals, from 0 to 1; None where one is not known."""

    name: str
    interval_s: float
    loads: Sequence[float | None]


def has_series(conditions: Conditions) -> bool:
    """Return whether all loads of this form are there: the full one needs the traces of inference."""
    return conditions.quick or all((conditions.traces / name).exists() for name in (SERVEGEN, ALIBABA, AZURE))


def generated_series(seed: int) -> LoadSeries:
    loads = [sample.load for sample in generate_load(seed, _GENERATED_DAYS)]
    return LoadSeries("generated", INTERVAL_S, loads)


def series_of(folder: Path, seed: int) -> list[LoadSeries]:
    """Return the loads of all traces of inference in a folder, at their own intervals, and a generated one.

    A load is the rate of a model, or the number of busy pods or of requests, over its highest, times the
    peak of the thesis' cluster (Figure 3.1). Rates of zero are missing data.
    """
    rates: dict[str, list[float]] = {}
    for row in _rows(folder / SERVEGEN):
        rates.setdefault(row["model"], []).append(float(row["rate_rps"]))
    pods = [float(row["busy_pods_ge5pct"]) / float(row["gpu_pods"]) for row in _rows(folder / ALIBABA)]
    requests = Counter(int(float(row["timestamp_s"]) // _AZURE_S) for row in _rows(folder / AZURE))
    counts = [float(requests[index]) for index in range(max(requests))]
    return [
        *(LoadSeries(model, _SERVEGEN_S, _scaled(found, zero=None)) for model, found in rates.items()),
        LoadSeries("alibaba", INTERVAL_S, _scaled(pods)),
        LoadSeries("azure", _AZURE_S, _scaled(counts)),
        generated_series(seed),
    ]


def measure_forecasts(conditions: Conditions) -> Result:
    """Measure `forecast_skill` and `forecast_skill_p95` on the second half of each series. The quick form has
    the generated one alone."""
    import torch

    from infra.lender.lstm import train

    torch.set_num_threads(1)
    seed = conditions.seed
    chosen = [generated_series(seed)] if conditions.quick else series_of(conditions.traces, seed)
    rows = [skills(series, Latest(partial(train, seed=seed))) for series in chosen]
    note = (
        "1 - error / error of the last value, at the next interval, mean over "
        f"{len(rows)} series; second half of each, with all before it as history"
    )
    return Result(
        tuple(
            Measurement(
                name, math.fsum(float(row[column] or 0.0) for row in rows) / len(rows), note, len(rows)
            )
            for name, column in (
                ("forecast_skill", "selection_skill"),
                ("forecast_skill_p95", "selection_skill_p95"),
            )
        ),
        (Table("forecasts", rows),),
    )


class Latest:
    """A trainer that is also a forecaster: the last one that it has trained, or the last value before any
    training."""

    def __init__(self, train: Trainer) -> None:
        self._train = train
        self._forecaster: Forecaster = LastValue()

    def __call__(self, history: LoadHistory, until: int) -> Forecaster | None:
        trained = self._train(history, until)
        self._forecaster = trained or self._forecaster
        return trained

    def forecast(self, history: LoadHistory, steps: int) -> list[float]:
        """Forecast as in `Forecaster`."""
        return self._forecaster.forecast(history, steps)


def skills(series: LoadSeries, trained: Latest) -> Mapping[str, Value]:
    """Return the row of a series: the error of the last value, and the skill of each forecaster over it. Both
    are given for the root mean squared error and for the 95th percentile of the absolute error."""
    selection = Selection(
        trained,
        interval_s=series.interval_s,
        retrain_s=min(_RETRAIN_S, series.interval_s * len(series.loads) / _TRAININGS),
    )
    forecasters: dict[str, Forecaster] = {
        "last_value": LastValue(),
        "selection": selection,
        "seasonal": SeasonalNaive(),
        "lstm": trained,
    }
    errors: dict[str, list[float]] = {name: [] for name in forecasters}
    for index, past in _histories(series):
        forecasts = {name: one.forecast(past, 1)[0] for name, one in forecasters.items()}
        load = series.loads[index]
        if load is not None and 2 * index >= len(series.loads):
            for name, forecast in forecasts.items():
                errors[name].append(abs(forecast - load))
    of_last = _summary(errors.pop("last_value"))
    row: dict[str, Value] = {"series": series.name, "intervals": float(len(errors["lstm"]))}
    row |= {"last_value_error": of_last[0], "last_value_error_p95": of_last[1]}
    for name, found in errors.items():
        mean, tail = (1 - ours / theirs for ours, theirs in zip(_summary(found), of_last, strict=True))
        row |= {f"{name}_skill": mean, f"{name}_skill_p95": tail}
    return row


def _histories(series: LoadSeries) -> Iterator[tuple[int, LoadHistory]]:
    """Yield the number of each interval after one with a load, and the history before it."""
    past = LoadHistory(series.interval_s, len(series.loads))
    for index, load in enumerate(series.loads[:-1]):
        if load is not None:
            past.add(_START_S + index * series.interval_s, load)
            yield index + 1, past


def _summary(errors: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(errors)
    mean = math.sqrt(math.fsum(error * error for error in errors) / len(errors))
    return mean, ordered[min(int(_TAIL * len(ordered)), len(ordered) - 1)]


def _scaled(values: Sequence[float], zero: float | None = 0.0) -> list[float | None]:
    highest = max(values)
    return [value / highest * PEAK if value else zero for value in values]


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
