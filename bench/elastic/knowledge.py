"""Worth of profile runs: completion times where speeds are unknown, over those where all were known before at
no cost. No profile run that takes time of the servers could gain more."""

from collections.abc import Sequence
from statistics import fmean

from bench.elastic.claims import BATCH, CELL, MICRO_BATCH, ZONE, Kind, kinds_of, simulate
from bench.figures import Measurement, Result, Table
from infra.workloads.elastic.cluster import TRAINING_GPU
from infra.workloads.timed import TimedEvent
from schemas.base import Event
from schemas.elastic.workload import TrainingHyperparameters
from schemas.profiles import ProfileKey, ProfilePoint, ProfileReported, sequence_class

_GPUS = (1, 2, 4, 8, 16)
_JOBS, _QUICK_JOBS, _SEEDS, _QUICK_SEEDS = 600, 200, 5, 2


def measure_knowledge(quick: bool, seed: int) -> Result:
    """Measure `unknown_speed_cost_pct`: the increase of the mean completion time if kinds of jobs are unknown
    and their first workers measure them, compared with published profiles of all kinds."""
    count, seeds = (_QUICK_JOBS, _QUICK_SEEDS) if quick else (_JOBS, _SEEDS)
    rows = []
    for each in range(seed, seed + seeds):
        unknown = simulate(each, count, "none")
        known = simulate(each, count, "none", published(kinds_of(each)))
        unknown_s, known_s = (fmean(run.jct_s.values()) for run in (unknown, known))
        rows.append(
            {
                "seed": each,
                "unknown_s": unknown_s,
                "known_s": known_s,
                "cost_pct": 100 * (unknown_s / known_s - 1),
                "unknown_error_pct": unknown.running_time_error_pct,
                "known_error_pct": known.running_time_error_pct,
            }
        )
    errors = (fmean(row[name] for row in rows) for name in ("unknown_error_pct", "known_error_pct"))
    note = (
        f"mean of {seeds} simulations of {count} jobs; error of running times: "
        f"{' without profiles, '.join(f'{error:.1f} %' for error in errors)} with all"
    )
    cost = Measurement("unknown_speed_cost_pct", fmean(row["cost_pct"] for row in rows), note, len(rows))
    return Result((cost,), (Table("knowledge", rows),))


def published(kinds: Sequence[Kind]) -> list[TimedEvent[Event]]:
    """Return profiles of the true steps of kinds, before the first job."""
    return [TimedEvent(0.0, _profile(number, kind)) for number, kind in enumerate(kinds)]


def _profile(number: int, kind: Kind) -> ProfileReported:
    length = TrainingHyperparameters(global_batch_size=BATCH).sequence_length
    return ProfileReported(
        cell=CELL,
        zone=ZONE,
        profiler="bench",
        key=ProfileKey(
            base_model=f"model-{number}",
            sequence_tokens=sequence_class(length),
            rank=0,
            target_modules=(),
            precision="bfloat16",
        ),
        points=tuple(
            ProfilePoint(
                gpu_type=TRAINING_GPU.name,
                gpus=gpus,
                nodes=-(-gpus // TRAINING_GPU.gpus),
                micro_batch_size=size,
                step_s=kind.pass_s + size * kind.sample_s + kind.exchange_of(gpus),
                exchange_s=kind.exchange_of(gpus),
                tokens_per_sample=length,
                steps=20,
            )
            for gpus in _GPUS
            for size in (MICRO_BATCH // 4, MICRO_BATCH)
        ),
    )
