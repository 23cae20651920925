"""Pause of a real job when a worker joins or leaves."""

from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.figures import Measurement, Result, Table
from bench.node import NODE, LoggedSeconds, advance_until, node_context, write_dataset
from executors.elastic import ElasticTraining
from executors.elastic.runner import ElasticRunner
from executors.lora.default_base import default_base_directory
from executors.processes.forked_process import warm_up
from executors.settings import JobSettings
from schemas.elastic.commands import Member, WorkersAssigned
from schemas.elastic.workload import ElasticWorkload, TrainingHyperparameters
from schemas.fleet import FleetEvent, RunStarted
from schemas.lora import Dataset

_JOB = "j1"
_RECORDS = 256
_POLL_S = 0.01


def measure_scaling(quick: bool, seed: int) -> Result:
    """Measure `scale_pause_s`: a job of the default base on a CPU goes from one worker to two and back, all
    weights trained, with the same global batch."""
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
    write_dataset(folder / "pairs.jsonl", _RECORDS, seed)
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
    settings = JobSettings(model_root=model.parent, dataset_root=folder)
    warm_up(*ElasticTraining.MODULES)
    runner = ElasticRunner(node_context(folder, model.name, reports), settings, gpus=2)
    pauses = LoggedSeconds("executors.gang.local_gang", "job scaled", 1)
    try:
        for generation in range(1, 2 * rounds + 2):
            runner.apply(_assigned(workload, generation, workers=1 if generation % 2 else 2))
            advance_until(runner, reports, partial(_has_started, reports, generation), _POLL_S)
    finally:
        pauses.close()
        runner.close("node_stops")
    return [pause_s for (pause_s,) in pauses.seen]


def _run_id(generation: int) -> str:
    """Return the id of a run, as an elastic zone names it."""
    return f"{generation}/{_JOB}"


def _has_started(reports: list[FleetEvent], generation: int) -> bool:
    run_id = _run_id(generation)
    return any(isinstance(report, RunStarted) and report.run_id == run_id for report in reports)


def _assigned(workload: ElasticWorkload, generation: int, workers: int) -> WorkersAssigned:
    return WorkersAssigned(
        zone="z",
        node=NODE,
        run_id=_run_id(generation),
        job_id=_JOB,
        user="u",
        generation=generation,
        members=(Member(node=NODE, workers=workers),),
        resumes=generation == 1,
        resume_samples=0,
        expected_samples_per_s=workers * workload.samples_per_s,
        workload=workload,
    )
