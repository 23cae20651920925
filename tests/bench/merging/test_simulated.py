"""Simulated runs on the measured profiles: what is kept of them, and that a run is made once."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from bench.figures import Conditions
from bench.goals import goals
from bench.merging.measured_truth import is_known, past_merges
from bench.merging.merging_trial import MergingTrial, rival
from bench.merging.parts import PUBLISHED_S, SCHEMES, SIMULATED, SUITE, all_rivals, full, quick, scope_of
from bench.merging.simulated import run
from bench.output import report, write_artefacts
from bench.runs import Runs
from bench.suite import SuiteRun
from infra.errors import CommandError
from tests.support.profiles import SHARED, settings_of

measured = pytest.mark.skipif(not SHARED.exists(), reason="the measured profiles are not here")


def setting(jobs: int = 8):
    (one,) = settings_of("roberta-base", first=jobs)
    return one


def conditions(folder, profiles=SHARED) -> Conditions:
    return Conditions(True, 0, folder, 1, Console(file=io.StringIO()), profiles=profiles)


@measured
def test_every_job_is_over():
    plain = run(MergingTrial(setting(), modes=()))
    assert [job.name for job in plain.jobs] == [job.name for job in setting().read()[1]]
    assert plain.met == 8
    assert plain.merges == plain.undone == 0
    assert all(job.ended_s > job.submitted_s for job in plain.jobs)
    assert plain.average_s <= plain.tail_s <= plain.makespan_s


@measured
def test_cold_switches_cost_a_rival_more():
    cold, warm = (run(rival(setting(), "srtf", "interval", warm)) for warm in (False, True))
    assert cold.average_s > warm.average_s


@measured
def test_outcome_is_reused_for_same_measurements(tmp_path):
    trials = [rival(setting(2), "tiresias", "interval"), rival(setting(2), "srtf", "interval")]
    Runs(tmp_path, SIMULATED, "s").complete(trials[:1], 1, Console(quiet=True))
    runs = Runs(tmp_path, SIMULATED, "s")
    assert runs.missing(trials) == trials[1:]
    assert len(runs.of(trials[0]).jobs) == 2
    copied = tmp_path / "copied.csv"
    copied.write_text(SHARED.joinpath("workloads/FM-1-roberta-base.csv").read_text() + "\n")
    other = replace(trials[0], setting=replace(trials[0].setting, workload=str(copied)))
    assert other.identity()["measured"] != trials[0].identity()["measured"]


@measured
def test_pair_is_known_wholly_or_not():
    profiles, jobs = settings_of("roberta-base")[0].read()
    tasks = sorted({job.task for job in jobs})
    pairs = [(a, b) for a in tasks for b in tasks if a < b]
    known = [pair for pair in pairs if is_known(*pair)]
    assert all(is_known(b, a) == is_known(a, b) for a, b in pairs)
    assert 0.3 < len(known) / len(pairs) < 0.7
    found = past_merges(profiles, jobs)
    assert {past.mode for past in found} == {"temporal", "spatial"}
    assert len(found) <= 4 * len(known)


@pytest.mark.long
@measured
def test_parts_bring_their_figures_and_artefacts(tmp_path):
    bench = SuiteRun(conditions(tmp_path), replace(quick((setting(4),)), rivals_of=()), SIMULATED)
    (part,) = (part for part in SUITE.parts if part.title == "schemes")
    result = part.measure(bench)
    assert {one.name for one in result.measurements} <= set(goals("merging"))
    assert "jct_roberta_base_s" in {one.name for one in result.measurements}
    document = report("merging", result.measurements, quick=True, seed=0)
    assert all("simulated" in figure["note"] for figure in document["figures"])
    write_artefacts(tmp_path, document, result.tables)
    assert len(list(tmp_path.glob("*.csv"))) == len(result.tables)


def test_missing_measurements_are_named(tmp_path):
    with pytest.raises(CommandError, match="--profiles"):
        scope_of(conditions(tmp_path, profiles=tmp_path / "none"))


def test_full_form_has_all_rivals_of_paper():
    settings = settings_of()
    assert full(settings).rivals_of == tuple(one.model for one in settings)
    trials = all_rivals(settings[0])
    assert {trial.scheme for trial in trials} == set(SCHEMES)
    assert len(trials) == 2 * len(SCHEMES)
    assert PUBLISHED_S.keys() == {one.model for one in settings}


def test_every_figure_names_a_part_that_there_is():
    assert {goal.part for goal in goals("merging").values()} == {part.title for part in SUITE.parts}
