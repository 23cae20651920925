"""Jobs on workers of unlike speed: real training, before and after throttled CPU workers join."""

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from bench.figures import Measurement, Result, Table
from executors.elastic import ElasticTraining
from executors.elastic.runner import ElasticRunner
from executors.elastic.settings import ElasticSettings
from executors.lora.default_base import default_base_directory
from executors.node.process import SystemClock
from executors.node.room import DiskSpace
from executors.node.runner import RunnerContext
from executors.node.settings import ExecutorSettings
from executors.processes.forked_process import warm_up
from schemas.elastic.commands import Member, WorkersAssigned, WorkersReleased
from schemas.elastic.workload import ElasticWorkload, TrainingHyperparameters
from schemas.fleet import FleetEvent, RunFailed, RunProgressed
from schemas.lora import Dataset

_SEQUENCE_S = 0.02
"""Time of a sequence on a fast worker: several times its computation, so workers that share a core hardly
slow each other."""
_BATCH = 32
_SETTLING_STEPS = 9
"""Steps before the measured ones. In the first, shares are even; in the next, they follow from few
measurements."""
_MEASURED_STEPS = 12
_RECORDS = 256
_WORDS = ("def", "class", "return", "self", "import", "value", "error", "raise", "range", "lambda")
_POLL_S = 0.002
_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Mix:
    """Workers of a job.

    Attributes:
        fast: workers that it begins with.
        slow: workers that join.
        slowness: time of a sequence on a slow worker over that on a fast one.
    """

    fast: int
    slow: int
    slowness: float


MIXES = (Mix(1, 1, 1.5), Mix(2, 3, 3.0), Mix(1, 3, 3.0), Mix(1, 1, 3.0), Mix(1, 1, 10.0), Mix(1, 1, 50.0))
"""2 and 3 workers at a third of the speed: two V100 that are joined by three T4 (erratum L4)."""
QUICK_MIXES = (Mix(2, 3, 3.0), Mix(1, 1, 50.0))


def measure_mixed(quick: bool, seed: int) -> Result:
    """Measure `hetero_speedup_least` and `hetero_of_sum`, two ratios of a job's speed with slower workers.

    `hetero_speedup_least` is the lowest ratio to its speed before they joined. `hetero_of_sum` is the mean
    ratio to a sum of two speeds: its speed on fast workers alone, and the speed to which the slow workers are
    throttled.
    """
    return measure_mixes(QUICK_MIXES if quick else MIXES, seed)


def measure_mixes(mixes: Sequence[Mix], seed: int) -> Result:
    """Measure the figures of `measure_mixed` on some mixes."""
    warm_up(*ElasticTraining.MODULES)
    with TemporaryDirectory() as name:
        folder = Path(name)
        _write_dataset(folder / "text.jsonl", seed)
        rows = [_measured(folder / f"mix{number}", folder, mix) for number, mix in enumerate(mixes)]
    speedups, parts = ([row[column] for row in rows] for column in ("speedup", "part_of_sum"))
    note = (
        "real training of the default base on one machine: CPU workers that sleep until a sequence has taken "
        f"{1e3 * _SEQUENCE_S:g} ms, or a multiple of it; batches of {_BATCH}, {_MEASURED_STEPS} steps before "
        "and after the others joined"
    )
    return Result(
        (
            Measurement("hetero_speedup_least", min(speedups), note, len(rows)),
            Measurement("hetero_of_sum", fmean(parts), f"mean; {note}", len(rows)),
        ),
        (Table("mixed", rows),),
    )


def _measured(folder: Path, data: Path, mix: Mix) -> dict[str, float]:
    nodes = _Nodes(folder, data, {"fast": 1.0, "slow": mix.slowness}, max(mix.fast, mix.slow))
    try:
        fast = nodes.speed("mixed", 1, {"fast": mix.fast})
        together = nodes.speed("mixed", 2, {"fast": mix.fast, "slow": mix.slow})
        nodes.end("mixed", 2)
    finally:
        nodes.close()
    slow = mix.slow / (mix.slowness * _SEQUENCE_S)
    return {
        "fast_workers": mix.fast,
        "slow_workers": mix.slow,
        "slowness": mix.slowness,
        "fast_samples_per_s": fast,
        "slow_samples_per_s": slow,
        "together_samples_per_s": together,
        "speedup": together / fast,
        "part_of_sum": together / (fast + slow),
    }


class _Nodes:
    """Nodes of one machine and one disk, whose workers have a speed each."""

    def __init__(self, folder: Path, data: Path, slowness: dict[str, float], gpus: int) -> None:
        base = default_base_directory()
        self._model = base.name
        self._reports: list[FleetEvent] = []
        self._runners = {
            node: ElasticRunner(
                _context(folder, node, self._reports),
                ElasticSettings(
                    model_root=base.parent,
                    dataset_root=data,
                    progress_s=0.0,
                    least_sequence_s=factor * _SEQUENCE_S,
                ),
                gpus,
            )
            for node, factor in slowness.items()
        }

    def speed(self, job_id: str, generation: int, workers: dict[str, int]) -> float:
        """Assign a job to workers, and return its speed (samples/s), once it has settled."""
        run_id = f"{job_id}/{generation}"
        members = tuple(Member(node=node, workers=count) for node, count in workers.items())
        for node in workers:
            command = WorkersAssigned(
                zone="z",
                node=node,
                run_id=run_id,
                job_id=job_id,
                user="u",
                generation=generation,
                members=members,
                resumes=generation == 1,
                resume_samples=0,
                expected_samples_per_s=1.0,
                workload=self._workload,
            )
            self._runners[node].apply(command)

        def speeds() -> list[float]:
            return [
                report.measured.samples_per_s
                for report in self._reports
                if isinstance(report, RunProgressed) and report.run_id == run_id and report.measured
            ]

        self._until(lambda: len(speeds()) >= _SETTLING_STEPS + _MEASURED_STEPS)
        # Each speed is of one step, and all steps have the same number of samples.
        return 1 / fmean(1 / speed for speed in speeds()[_SETTLING_STEPS:][:_MEASURED_STEPS])

    def end(self, job_id: str, generation: int) -> None:
        """Withdraw a job, and wait until its workers have ended."""
        for node, runner in self._runners.items():
            if runner.of((job_id,)):
                release = WorkersReleased(
                    zone="z", node=node, job_id=job_id, generation=generation, reason="withdrawn"
                )
                runner.apply(release)
        self._until(lambda: all(runner.is_idle for runner in self._runners.values()))

    def close(self) -> None:
        """End the nodes."""
        for runner in self._runners.values():
            runner.close("node_stops")

    @property
    def _workload(self) -> ElasticWorkload:
        return ElasticWorkload(
            work_samples=10**6,
            model=self._model,
            dataset=Dataset(path="text.jsonl", samples=_RECORDS),
            hyperparameters=TrainingHyperparameters(
                global_batch_size=_BATCH, micro_batch_size=_BATCH, sequence_length=16
            ),
            max_workers=8,
            samples_per_s=1.0,
            keeps_checkpoints=False,
        )

    def _until(self, condition: Callable[[], bool]) -> None:
        """Advance the runners until a condition holds.

        Raises:
            RuntimeError: a run fails, or the condition does not hold in time.
        """
        deadline_s = time.monotonic() + _TIMEOUT_S
        while not condition():
            for runner in self._runners.values():
                runner.advance()
            failed = [report.error for report in self._reports if isinstance(report, RunFailed)]
            if failed or time.monotonic() > deadline_s:
                raise RuntimeError(f"a run failed: {failed or 'the condition does not hold in time'}")
            time.sleep(_POLL_S)


def _context(folder: Path, node: str, reports: list[FleetEvent]) -> RunnerContext:
    settings = ExecutorSettings(
        cell="c", node=node, runners=("elastic",), output_root=folder / "output", state_root=folder / "state"
    )
    return RunnerContext(
        settings, reports.append, DiskSpace({"folder": folder.parent}, least_free_bytes=0), SystemClock()
    )


def _write_dataset(path: Path, seed: int) -> None:
    draw = random.Random(seed)
    lines = (json.dumps({"text": " ".join(draw.choices(_WORDS, k=20))}) + "\n" for _ in range(_RECORDS))
    path.write_text("".join(lines))
