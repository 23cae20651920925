"""The error of profiles on real measurements: steps predicted by the profile store from a few others."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.figures import Measurement, Result, Table, Value
from bench.merging.measured import read_profiles
from schemas.profiles import ProfileKey, ProfilePoint, ProfileReported
from streams.cell.profiles import ProfileStore, StepSetting, estimated

GPUS = ("V100", "A100")
KNOWN_SIZES = 3
"""Micro-batches that are measured of each configuration of GPUs and nodes."""
_KEPT_ASIDE = 5
"""One of this many configurations of GPUs is kept aside as a whole."""
_ZONE = "z"

Steps = Mapping[StepSetting, float]
Split = tuple[list[StepSetting], list[StepSetting]]
"""Steps that are measured, and steps that are kept aside."""


@dataclass(frozen=True)
class RecordedError:
    """Errors of the steps that were kept aside of one backbone on one GPU type, in per cent, ascending."""

    model: str
    gpu: str
    kept_aside: str
    errors_pct: tuple[float, ...]
    unknown: int
    """Steps that the store could not predict."""

    @property
    def row(self) -> dict[str, Value]:
        """Row of the table."""
        return {
            "model": self.model,
            "gpu": self.gpu,
            "kept_aside": self.kept_aside,
            "steps": len(self.errors_pct),
            "unknown": self.unknown,
            "error_pct": median(self.errors_pct) if self.errors_pct else None,
            "error_p90_pct": _quantile(self.errors_pct, 0.9) if self.errors_pct else None,
        }


def measure_profiles(folder: Path, models: Sequence[str], seed: int) -> Result:
    """Predict steps of each backbone by the rule of the store.

    Raises:
        FileNotFoundError: a file of measurements is missing.
        ValueError: a file has another format.
    """
    found = [
        recorded_error(model, gpu, steps, name, split(steps, random.Random(seed)))
        for model in models
        for gpu in GPUS
        if (steps := read_steps(folder, model, gpu))
        for name, split in SPLITS.items()
    ]
    errors = sorted(each for one in found if one.kept_aside == "micro-batches" for each in one.errors_pct)
    note = (
        f"{len(errors)} measured steps of {len(models)} backbones on {' and '.join(GPUS)}; predicted from "
        f"{KNOWN_SIZES} other micro-batches on as many GPUs and nodes"
    )
    return Result(
        (
            Measurement("recorded_profile_error_pct", median(errors), f"median of {note}", len(errors)),
            Measurement(
                "recorded_profile_error_p90_pct", _quantile(errors, 0.9), f"p90 of {note}", len(errors)
            ),
        ),
        (Table("recorded_profile_error", [one.row for one in found]),),
    )


def read_steps(folder: Path, model: str, gpu: str) -> Steps:
    """Return the duration of a step in seconds by configuration: the median over placements."""
    found: dict[StepSetting, list[float]] = {}
    for step in read_profiles(folder, model, gpu).steps:
        setting = StepSetting(gpu, step.micro_batch_size, step.gpus, step.nodes)
        found.setdefault(setting, []).append(step.step_s)
    return {setting: median(each) for setting, each in sorted(found.items())}


def without_micro_batches(steps: Steps, draw: random.Random) -> Split:
    """Keep all but `KNOWN_SIZES` drawn micro-batches of each configuration of GPUs aside."""
    known: list[StepSetting] = []
    for settings in _by_gpus(steps).values():
        known += draw.sample(settings, min(KNOWN_SIZES, len(settings)))
    return known, [setting for setting in steps if setting not in set(known)]


def without_gpus(steps: Steps, draw: random.Random) -> Split:
    """Keep drawn configurations of GPUs aside, at the least, the middle and the largest micro-batch."""
    sizes = sorted({setting.micro_batch_size for setting in steps})
    chosen = {sizes[0], sizes[len(sizes) // 2], sizes[-1]}
    groups = _by_gpus(steps)
    aside = set(draw.sample(sorted(groups), len(groups) // _KEPT_ASIDE))
    at_chosen = [setting for setting in steps if setting.micro_batch_size in chosen]
    return (
        [setting for setting in at_chosen if (setting.gpus, setting.nodes) not in aside],
        [setting for setting in at_chosen if (setting.gpus, setting.nodes) in aside],
    )


SPLITS: Mapping[str, Callable[[Steps, random.Random], Split]] = {
    "micro-batches": without_micro_batches,
    "numbers of GPUs": without_gpus,
}


def recorded_error(model: str, gpu: str, steps: Steps, name: str, split: Split) -> RecordedError:
    """Return the errors of the steps that a split keeps aside, as predicted from the others."""
    known, aside = split
    key = ProfileKey(base_model=model, sequence_tokens=1, rank=0, target_modules=(), precision="float32")
    store = ProfileStore()
    for setting in known:
        store.publish(_profile(key, setting, steps[setting]))
    readings = store.offline(_ZONE, key)
    predicted = {setting: estimated(readings, setting) for setting in aside}
    errors = [
        100 * abs(estimate.reading.step_s / steps[setting] - 1)
        for setting, estimate in predicted.items()
        if estimate is not None
    ]
    return RecordedError(model, gpu, name, tuple(sorted(errors)), len(aside) - len(errors))


def _profile(key: ProfileKey, setting: StepSetting, step_s: float) -> ProfileReported:
    point = ProfilePoint(
        gpu_type=setting.gpu_type,
        gpus=setting.gpus,
        nodes=setting.nodes,
        micro_batch_size=setting.micro_batch_size,
        step_s=step_s,
        tokens_per_sample=1.0,
        steps=1,
    )
    return ProfileReported(cell="c", zone=_ZONE, profiler="bench", key=key, points=(point,))


def _by_gpus(steps: Steps) -> dict[tuple[int, int], list[StepSetting]]:
    groups: dict[tuple[int, int], list[StepSetting]] = {}
    for setting in steps:
        groups.setdefault((setting.gpus, setting.nodes), []).append(setting)
    return groups


def _quantile(ascending: Sequence[float], part: float) -> float:
    return ascending[max(math.ceil(part * len(ascending)) - 1, 0)]
