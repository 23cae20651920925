"""Learning curves of tasks alone and merged, from a file `learning_<model>.json.gz`.

    single[task][learning rate][accumulation steps]   from the pre-trained weights
    temporal["A,B"]                                   B from the weights that A has left
    spatial["A,B"]                                    both in one run, keys `<task>_<metric>`

Each holds `<metric>` and `<metric>_epoch`, lists of equal length. An unmeasured curve is empty, and one that
was measured several times holds its runs in sequence.
"""

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROUNDING = 1e-6
"""Tolerance of a target: metrics are stored with six decimals, but targets with all."""


def as_fraction(metric: float) -> float:
    """Return a metric as a job's accuracy: losses, which are stored negative, as the probability exp(metric)
    of a token. Larger stays better, and nothing is below 0."""
    return math.exp(metric) if metric < 0 else metric


class CurveSetting(NamedTuple):
    """Hyperparameters of a curve of one task."""

    learning_rate: str
    """Learning rate as written in the file: `1e-4`."""
    accumulation_steps: int


@dataclass(frozen=True)
class Curve:
    """A validation metric over the epochs of one run. Larger is better, for all metrics: losses, which are
    stored negative, are converted by `as_fraction`."""

    metric: str
    """Name of the metric, such as `eval_accuracy`, `eval_f1`, `eval_pearson`, `eval_loss`."""
    epochs: tuple[float, ...]
    """Ascending; the first may be 0.9, if an epoch ended with a partial step."""
    values: tuple[float, ...]

    @property
    def best(self) -> float:
        return max(self.values)

    def first_reaching(self, target: float) -> int | None:
        """Return the number of the first evaluation, from 1, that meets the target; None if none does. There
        is one evaluation per epoch, so this is the number of epochs begun."""
        return next((n for n, value in enumerate(self.values, 1) if value >= target - ROUNDING), None)


@dataclass(frozen=True)
class LearningCurves:
    """Curves of one backbone, without those that are empty in the file. Of repeated runs, the first is
    kept."""

    model: str
    tasks: tuple[str, ...]
    """Tasks in the file's order."""
    single: Mapping[str, Mapping[CurveSetting, Curve]]
    temporal: Mapping[tuple[str, str], Curve]
    """Curve of the receiver, by donor and receiver."""
    spatial: Mapping[tuple[str, str], tuple[Curve, Curve]]
    """Curves of both tasks, by both in the file's order."""

    def merged(self, donor: str, receiver: str, mode: str) -> Curve | None:
        """Return the receiver's curve in a merge; None if it was not measured. In a spatial merge, each of
        the two is the donor of the other."""
        if mode == "temporal":
            return self.temporal.get((donor, receiver))
        if (receiver, donor) in self.spatial:
            return self.spatial[receiver, donor][0]
        return self.spatial[donor, receiver][1] if (donor, receiver) in self.spatial else None


def read_learning_curves(folder: Path, model: str) -> LearningCurves:
    """Read `learning_<model>.json.gz` of a folder of profiles.

    Raises:
        FileNotFoundError: it is missing; the message names the models that are present.
        ValueError: it is not of this form; the message has the place.
    """
    path = folder / f"learning_{model}.json.gz"
    if not path.exists():
        found = sorted(folder.glob("learning_*.json.gz"))
        models = ", ".join(name.name[len("learning_") : -len(".json.gz")] for name in found)
        raise FileNotFoundError(f"{path} is missing; models with learning curves there: {models or 'none'}")
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            data = json.load(file)
    except (OSError, EOFError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not gzipped JSON: {error}") from error
    single, temporal, spatial = (_section(data, name, path) for name in ("single", "temporal", "spatial"))
    return LearningCurves(
        model=model,
        tasks=tuple(single),
        single={task: _settings(settings, f"{path}: single[{task!r}]") for task, settings in single.items()},
        temporal={
            _pair(key, path): curve
            for key, entry in temporal.items()
            if (curve := _curve(entry, "", f"{path}: temporal[{key!r}]")) is not None
        },
        spatial=dict(_spatial(spatial, path)),
    )


def _spatial(section: Mapping[str, Any], path: Path) -> Any:
    for key, entry in section.items():
        pair, where = _pair(key, path), f"{path}: spatial[{key!r}]"
        one, other = (_curve(entry, f"{task}_", where) for task in pair)
        if one is not None and other is not None:
            yield pair, (one, other)


def _settings(section: Any, where: str) -> dict[CurveSetting, Curve]:
    found = {}
    for rate, by_steps in _mapping(section, where).items():
        for steps, entry in _mapping(by_steps, f"{where}[{rate!r}]").items():
            at = f"{where}[{rate!r}][{steps!r}]"
            if not steps.isdecimal() or int(steps) < 1:
                raise ValueError(f"{at}: accumulation steps are a whole number from 1 on, not {steps!r}")
            curve = _curve(entry, "", at)
            if curve is not None:
                found[CurveSetting(rate, int(steps))] = curve
    return found


def _curve(entry: Any, prefix: str, where: str) -> Curve | None:
    entry = _mapping(entry, where)
    metrics = [key for key in entry if key.startswith(f"{prefix}eval_") and not key.endswith("_epoch")]
    if len(metrics) != 1:
        raise ValueError(f"{where}: one metric `{prefix}eval_...` is expected, not {metrics or 'none'}")
    values, epochs = entry[metrics[0]], entry.get(f"{metrics[0]}_epoch")
    for name, numbers in ((metrics[0], values), (f"{metrics[0]}_epoch", epochs)):
        if not isinstance(numbers, list) or not all(
            isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
            for number in numbers
        ):
            raise ValueError(f"{where}: `{name}` is a list of finite numbers")
    if len(values) != len(epochs):
        raise ValueError(f"{where}: {len(values)} values of `{metrics[0]}`, but {len(epochs)} epochs")
    if not values:
        return None
    end = next((n for n in range(1, len(epochs)) if epochs[n] <= epochs[n - 1]), len(epochs))
    return Curve(
        metrics[0][len(prefix) :], tuple(map(float, epochs[:end])), _fractions([*map(float, values[:end])])
    )


def _fractions(values: Sequence[float]) -> tuple[float, ...]:
    """Return metrics from 0 to 1: a loss has only values below 0, and a correlation below 0 counts as 0."""
    if all(value < 0 for value in values):
        return tuple(map(as_fraction, values))
    return tuple(max(value, 0.0) for value in values)


def _pair(key: str, path: Path) -> tuple[str, str]:
    one, _, other = key.partition(",")
    if not one or not other or "," in other:
        raise ValueError(f"{path}: the key of a pair is `A,B`, not {key!r}")
    return one, other


def _section(data: Any, name: str, path: Path) -> Mapping[str, Any]:
    if not isinstance(data, dict) or name not in data:
        raise ValueError(f"{path}: the key `{name}` is missing")
    return _mapping(data[name], f"{path}: {name}")


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is an object, not {type(value).__name__}")
    return value
