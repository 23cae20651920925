"""How long a real job stands still when a worker joins or leaves."""

import json
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.figures import Measurement, Result, Table
from executors.elastic import ElasticTraining
from executors.elastic.runner import ElasticRunner
from executors.elastic.settings import ElasticSettings
from executors.lora.default_base import default_base_directory
from executors.node.process import SystemClock
from executors.node.room import Room
from executors.node.runner import RunnerContext
from executors.node.settings import ExecutorSettings
from executors.processes.forked_process import warm_up
from schemas.elastic.commands import Member, WorkersAssigned
from schemas.elastic.workload import ElasticWorkload, TrainingHyperparameters
from schemas.fleet import FleetEvent, RunFailed, RunStarted
from schemas.lora import Dataset

_NODE = "n1"
_JOB = "j1"
_RECORDS = 256
_WORDS = ("def", "class", "return", "self", "import", "value", "error", "raise", "range", "lambda")
_TIMEOUT_S = 120.0
_POLL_S = 0.01


class _Pauses(logging.Handler):
    """Reads them from the log, where an operator finds them."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses_s: list[float] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("job scaled") and isinstance(record.args, tuple):
            self.pauses_s.append(float(str(record.args[-1])))


def measure_scaling(quick: bool, seed: int) -> Result:
    """`scale_pause_s`: a job of the default base on a CPU goes from one worker to two and back, all weights
    trained, with the same global batch."""
    rounds = 3 if quick else 10
    with TemporaryDirectory() as name:
        pauses_s = _scale(Path(name), rounds, seed)
    joining_s, leaving_s = pauses_s[0::2], pauses_s[1::2]
    measurement = Measurement(
        name="scale_pause_s",
        value=median(pauses_s),
        note=f"from the last step on the old workers until the new ones can step: {rounds} times from 1 to 2 "
        f"(median {median(joining_s):.3f} s) and back ({median(leaving_s):.3f} s), default base, CPU",
        runs=len(pauses_s),
    )
    rows = tuple(
        (change, each) for change, values in (("1 to 2", joining_s), ("2 to 1", leaving_s)) for each in values
    )
    return Result((measurement,), (Table("scale_pauses", ("change", "scale_pause_s"), rows),))


def _scale(folder: Path, rounds: int, seed: int) -> list[float]:
    model = default_base_directory()
    _write_dataset(folder / "pairs.jsonl", seed)
    workload = ElasticWorkload(
        work_samples=10**9,
        model=model.name,
        dataset=Dataset(path="pairs.jsonl", samples=_RECORDS),
        hyperparameters=TrainingHyperparameters(global_batch_size=16, seed=seed),
        max_workers=2,
        samples_per_s=100.0,
        keeps_checkpoints=False,
    )
    reports: list[FleetEvent] = []
    context = RunnerContext(
        ExecutorSettings(cell="c", node=_NODE, output_root=folder, state_root=folder),
        reports.append,
        Room({"folder": folder}, least_free_bytes=0),
        SystemClock(),
    )
    settings = ElasticSettings(model_root=model.parent, dataset_root=folder)
    warm_up(*ElasticTraining.MODULES)
    runner = ElasticRunner(context, settings, gpus=2)
    log, handler = logging.getLogger("executors.gang.local_gang"), _Pauses()
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        for generation in range(1, 2 * rounds + 2):
            runner.apply(_assigned(workload, generation, workers=1 if generation % 2 else 2))
            _advance_until(runner, reports, _has_started(reports, generation))
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        runner.close("node_stops")
    return handler.pauses_s


def _run_id(generation: int) -> str:
    """As an elastic zone names the runs of a job."""
    return f"{generation}/{_JOB}"


def _has_started(reports: list[FleetEvent], generation: int) -> Callable[[], bool]:
    run_id = _run_id(generation)
    return lambda: any(isinstance(report, RunStarted) and report.run_id == run_id for report in reports)


def _advance_until(runner: ElasticRunner, reports: list[FleetEvent], condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while not condition():
        runner.advance()
        failed = [report.error for report in reports if isinstance(report, RunFailed)]
        if failed or time.monotonic() > deadline_s:
            raise RuntimeError(f"the job did not scale: {failed or 'nothing happened'}")
        time.sleep(_POLL_S)


def _assigned(workload: ElasticWorkload, generation: int, workers: int) -> WorkersAssigned:
    return WorkersAssigned(
        zone="z",
        node=_NODE,
        run_id=_run_id(generation),
        job_id=_JOB,
        user="u",
        generation=generation,
        members=(Member(node=_NODE, workers=workers),),
        resumes=generation == 1,
        resume_samples=0,
        expected_samples_per_s=workers * workload.samples_per_s,
        workload=workload,
    )


def _write_dataset(path: Path, seed: int) -> None:
    draw = random.Random(seed)
    lines = (json.dumps({"text": " ".join(draw.choices(_WORDS, k=40))}) + "\n" for _ in range(_RECORDS))
    path.write_text("".join(lines))
