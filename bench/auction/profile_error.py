"""The error of profiles: predicted against measured time per step, of short LoRA runs on this machine."""

import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.figures import Measurement, Result, Table, Value
from executors.lora.base_model import load_base
from executors.lora.dataset import DatasetRoot
from executors.lora.engine import FusedEngine, keep_freed_memory
from executors.lora.slots.profiling import Bounds, profile
from executors.processes.threads import one_thread
from schemas.lora import ALL_LINEAR, Dataset, LoraHyperparameters
from schemas.profiles import ProfileKey, ProfilePoint, ProfileReported, sequence_class
from streams.cell.profiles import ProfileStore, estimated
from streams.cell.readings import StepSetting

_ZONE = "z"
_GPU_TYPE = "cpu"
_MOST_GIB = 4.0
_RECORDS = 256
_WORDS = ("def", "class", "return", "self", "import", "value", "error", "raise", "range", "lambda")
PROFILED = (1, 2, 4, 8, 16)
"""Micro-batches of the profile of a shape, as `millrace profile` measures them."""
KEPT_ASIDE = (3, 4, 6, 8, 12)
"""Micro-batches of the jobs kept aside: three that the profile lacks, and two that it has."""
SHAPES = (
    LoraHyperparameters(rank=8, sequence_length=64),
    LoraHyperparameters(rank=16, sequence_length=32, target_modules=(ALL_LINEAR,)),
    LoraHyperparameters(rank=4, sequence_length=128, target_modules=("q_proj",)),
    LoraHyperparameters(rank=8, sequence_length=32),
    LoraHyperparameters(rank=32, sequence_length=64, target_modules=(ALL_LINEAR,)),
    LoraHyperparameters(rank=16, sequence_length=128),
)
_QUICK_SHAPES = 2
_SHAPE_S, _QUICK_SHAPE_S = 20.0, 5.0
"""Time limit for profiling a shape, and as much for its jobs."""


class ProcessorClock:
    """Processor time of this process. With one thread, it equals wall time on an idle core."""

    def time_s(self) -> float:
        """Return the seconds since the process began."""
        return time.process_time()


@dataclass(frozen=True)
class PredictedStep:
    """A job kept aside: its step as predicted and as measured."""

    shape: LoraHyperparameters
    micro_batch_size: int
    predicted_s: float
    stated_error: float
    """Relative error that the store states; 0 where it has measured the micro-batch."""
    measured_s: float

    @property
    def error_pct(self) -> float:
        """Absolute error of the prediction, in per cent of the measured step."""
        return 100 * abs(self.predicted_s / self.measured_s - 1)


def measure(quick: bool, seed: int) -> Result:
    """Profile shapes, then run jobs of other micro-batches and seeds, and compare."""
    shapes = SHAPES[:_QUICK_SHAPES] if quick else SHAPES
    most_s = _QUICK_SHAPE_S if quick else _SHAPE_S
    with TemporaryDirectory() as folder, one_thread():
        keep_freed_memory()
        _write_records(Path(folder) / "records.jsonl", seed)
        engine = FusedEngine(load_base(), DatasetRoot(Path(folder)))
        jobs = [job for shape in shapes for job in _predicted(engine, shape, most_s, seed)]
    return result_of(jobs)


def result_of(jobs: list[PredictedStep]) -> Result:
    """Return median and 90th percentile of the errors, and a row for each job."""
    errors = sorted(job.error_pct for job in jobs)
    shapes = len({job.shape for job in jobs})
    note = f"{len(jobs)} jobs of {shapes} shapes of the default base model; processor time of one thread"
    rows: list[dict[str, Value]] = [
        {
            "rank": job.shape.rank,
            "sequence_length": job.shape.sequence_length,
            "target_modules": " ".join(job.shape.target_modules),
            "micro_batch_size": job.micro_batch_size,
            "predicted_s": job.predicted_s,
            "measured_s": job.measured_s,
            "stated_error": job.stated_error,
            "error_pct": job.error_pct,
        }
        for job in jobs
    ]
    return Result(
        (
            Measurement("profile_error_pct", median(errors), f"median of {note}", len(errors)),
            Measurement("profile_error_p90_pct", _quantile(errors, 0.9), f"p90 of {note}", len(errors)),
        ),
        (Table("profile_error", rows),),
    )


def _quantile(ascending: list[float], part: float) -> float:
    return ascending[max(math.ceil(part * len(ascending)) - 1, 0)]


def _predicted(
    engine: FusedEngine, shape: LoraHyperparameters, most_s: float, seed: int
) -> Iterator[PredictedStep]:
    key = ProfileKey(
        base_model="default",
        sequence_tokens=sequence_class(shape.sequence_length),
        rank=shape.rank,
        target_modules=shape.target_modules,
        precision="float32",
    )
    store = ProfileStore()
    known = _points(engine, shape, PROFILED, most_s, seed)
    store.publish(ProfileReported(cell="c", zone=_ZONE, profiler="bench", key=key, points=known))
    for point in _points(engine, shape, KEPT_ASIDE, most_s, seed + 1):
        setting = StepSetting(_GPU_TYPE, point.micro_batch_size)
        estimate = estimated(store.offline(_ZONE, key), setting)
        if estimate is not None:
            predicted_s, error = estimate.reading.step_s, estimate.relative_error
            yield PredictedStep(shape, point.micro_batch_size, predicted_s, error, point.step_s)


def _points(
    engine: FusedEngine, shape: LoraHyperparameters, sizes: tuple[int, ...], most_s: float, seed: int
) -> tuple[ProfilePoint, ...]:
    data = Dataset(path="records.jsonl", samples=_RECORDS)
    seeded = shape.model_copy(update={"seed": seed})
    bounds = Bounds(most_s, _MOST_GIB, sizes)
    return profile(engine, ProcessorClock(), data, seeded, _GPU_TYPE, bounds).points


def _write_records(path: Path, seed: int) -> None:
    draw = random.Random(seed)
    texts = (" ".join(draw.choices(_WORDS, k=draw.randint(20, 120))) for _ in range(_RECORDS))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
