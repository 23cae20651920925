"""Outcomes are kept one by one, found again under the same sources alone, and made on the cores there are."""

import io
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from pydantic import FiniteFloat, TypeAdapter
from rich.console import Console

from bench.runs import Experiment, Runs, jobs_at_once, on_one_core, usable_cores
from infra.errors import CommandError

pinned = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="this system pins no process to a core"
)


@dataclass(frozen=True)
class Trial:
    number: int
    alone: bool = False

    def identity(self):
        return {"number": self.number}

    def __str__(self) -> str:
        return f"number {self.number}"


Values = Mapping[str, FiniteFloat]


def run(trial: Trial) -> Values:
    if trial.number < 0:
        raise CommandError("no such number")
    return {"number": float(trial.number), "cores": float(len(usable_cores())), "process": float(os.getpid())}


EXPERIMENT = Experiment[Trial, Values](run, TypeAdapter(Values), ())
ONE, OTHER = Trial(1), Trial(2)


def runs_in(folder, sources: str = "s", experiment=EXPERIMENT) -> Runs[Trial, Values]:
    return Runs(folder, experiment, sources)


def test_outcomes_are_found_again(tmp_path):
    runs_in(tmp_path).keep(ONE, {"welfare": 7.0})
    again = runs_in(tmp_path)
    assert again.of(ONE) == {"welfare": 7.0}
    assert again.missing([ONE, OTHER, OTHER]) == [OTHER]


def test_partial_file_is_no_outcome(tmp_path):
    runs = runs_in(tmp_path)
    runs.keep(ONE, {"welfare": 7.0})
    (path,) = (tmp_path / "runs").iterdir()
    path.rename(path.with_suffix(".partial"))
    assert runs_in(tmp_path).missing([ONE]) == [ONE]


def test_outcomes_of_other_sources_are_unused(tmp_path):
    runs_in(tmp_path, "old").keep(ONE, {"welfare": 7.0})
    assert runs_in(tmp_path, "new").missing([ONE]) == [ONE]
    assert runs_in(tmp_path, "old").missing([ONE]) == []


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        ({"outcome": {}}, "'alone'"),
        ({"alone": True}, "'outcome'"),
        ([], "list indices"),
        ({"alone": True, "outcome": None}, "valid dictionary|mapping"),
        ({"alone": True, "outcome": {"welfare": "many"}}, "welfare: "),
        ({"alone": True, "outcome": {"welfare": math.nan}}, "welfare: "),
        ("garbage", "string indices"),
    ],
)
def test_a_damaged_outcome_is_named(tmp_path, document, fault):
    runs_in(tmp_path).keep(Trial(1, alone=True), {"welfare": 7.0})
    (path,) = (tmp_path / "runs").iterdir()
    path.write_text(json.dumps(document))
    with pytest.raises(CommandError, match=rf"{path.name}: not an outcome of a run \(.*({fault})"):
        runs_in(tmp_path).find(Trial(1, alone=True))


def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CommandError, match=r"file/runs/.*: Not a directory"):
        runs_in(tmp_path / "file").keep(ONE, {})


def test_shared_run_does_not_serve_exclusive_one(tmp_path):
    alone = Trial(1, alone=True)
    runs_in(tmp_path).keep(ONE, {"welfare": 7.0}, alone=False)
    assert runs_in(tmp_path).missing([ONE, alone]) == [alone]
    runs_in(tmp_path).keep(alone, {"welfare": 7.0})
    assert runs_in(tmp_path).missing([ONE, alone]) == []


def test_trial_that_did_not_run_has_no_outcome(tmp_path):
    with pytest.raises(KeyError, match="number 1: not run"):
        runs_in(tmp_path).of(ONE)


def test_each_missing_trial_is_made_once_and_named(tmp_path):
    said = io.StringIO()
    console = Console(file=said, width=200)
    runs_in(tmp_path).complete([ONE], 1, console)
    runs = runs_in(tmp_path)
    runs.complete([ONE, OTHER, OTHER], 1, console)
    assert [line.split(" s: ")[1] for line in said.getvalue().splitlines()] == ["number 1", "number 2"]
    assert said.getvalue().splitlines()[1].startswith("1 of 1, ")
    assert runs.of(OTHER)["number"] == 2


def test_failing_trial_is_named_and_others_kept(tmp_path):
    with pytest.raises(CommandError, match="number -1: no such number"):
        runs_in(tmp_path).complete([ONE, Trial(-1)], 1, Console(quiet=True))
    assert runs_in(tmp_path).missing([ONE]) == []


@pinned
def test_exclusive_run_has_one_core_temporarily(tmp_path):
    before = os.sched_getaffinity(0)
    runs = runs_in(tmp_path)
    trials = [Trial(1, alone=True), Trial(2, alone=True)]
    runs.complete(trials, 2, Console(quiet=True))
    assert [runs.of(trial)["cores"] for trial in trials] == [1, 1]
    assert os.sched_getaffinity(0) == before


@pinned
@pytest.mark.slow
def test_parallel_processes_have_own_cores(tmp_path):
    trials = [Trial(number) for number in range(4)]
    runs = runs_in(tmp_path)
    runs.complete(trials, 2, Console(quiet=True))
    assert [(runs.of(each)["number"], runs.of(each)["cores"]) for each in trials] == [
        (float(each.number), 1.0) for each in trials
    ]
    assert os.getpid() not in {runs.of(each)["process"] for each in trials}
    alone = [Trial(each.number, alone=True) for each in trials]
    assert runs.missing(alone) == alone


@pytest.mark.slow
def test_trial_measuring_memory_has_own_process(tmp_path):
    experiment = Experiment[Trial, Values](run, TypeAdapter(Values), (), own_process=True)
    runs = runs_in(tmp_path, experiment=experiment)
    alone = [Trial(1, alone=True), Trial(2, alone=True)]
    runs.complete([*alone, Trial(3)], 1, Console(quiet=True))
    processes = [runs.of(trial)["process"] for trial in alone]
    assert len({*processes, float(os.getpid())}) == 3
    assert runs.of(Trial(3))["process"] == os.getpid()
    assert runs.missing([Trial(3, alone=True)]) == [Trial(3, alone=True)]


@pinned
def test_failing_exclusive_run_restores_cores():
    before = os.sched_getaffinity(0)
    inside = []

    def failing():
        with on_one_core():
            inside.append(os.sched_getaffinity(0))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        failing()
    assert inside == [{min(before)}]
    assert os.sched_getaffinity(0) == before


@pinned
def test_excess_jobs_are_reduced_with_remark():
    said = Console(file=io.StringIO(), width=200)
    with on_one_core():
        assert jobs_at_once(64, said) == 1
    assert said.file.getvalue() == "--jobs 64 is more than the usable cores: 1 at a time\n"


def test_fitting_jobs_are_kept_without_remark():
    said = Console(file=io.StringIO())
    assert jobs_at_once(1, said) == 1
    assert said.file.getvalue() == ""
