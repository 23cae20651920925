"""Runs keep to the cores that there are."""

import io
import os

import pytest
from rich.console import Console

from bench.auction.runs import pool
from bench.auction.runs.pool import Rows, run_missing
from bench.auction.runs.trial import Trial
from bench.cores import jobs_at_once, on_one_core, usable_cores
from tests.bench.auction.rows import TINY, row

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="this system pins no process to a core"
)


def test_a_run_that_fails_on_its_one_core_leaves_the_others_usable_after_it():
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


def watched(monkeypatch) -> list[int]:
    """Cores that were usable in each run that was made."""
    seen = []

    def made(trial, sources, alone):
        seen.append(len(usable_cores()))
        return row(trial, sources, alone)

    monkeypatch.setattr(pool, "run_trial", made)
    monkeypatch.setattr(pool, "warm_up", lambda: None)
    return seen


def test_a_run_made_alone_has_one_core_and_the_next_begins_with_all_of_them(tmp_path, monkeypatch):
    seen, before = watched(monkeypatch), os.sched_getaffinity(0)
    trials = [Trial(TINY, seed, "eft", alone=True) for seed in (0, 1)]
    run_missing(trials, Rows(tmp_path, "s"), 2, Console(quiet=True))
    assert seen == [1, 1]
    assert os.sched_getaffinity(0) == before


def test_more_jobs_than_usable_cores_are_as_many_as_there_are_and_said():
    said = Console(file=io.StringIO(), width=200)
    with on_one_core():
        assert jobs_at_once(64, said) == 1
    assert said.file.getvalue() == "--jobs 64 is more than the usable cores: 1 at a time\n"


def test_jobs_that_there_are_cores_for_are_left_as_they_are_and_nothing_is_said():
    said = Console(file=io.StringIO())
    assert jobs_at_once(1, said) == 1
    assert said.file.getvalue() == ""
