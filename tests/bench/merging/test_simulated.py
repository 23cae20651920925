"""Simulated runs on the measured profiles: what is kept of them, and that a run is made once."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bench.figures import Conditions
from bench.goals import goals
from bench.merging import tables
from bench.merging.known_merges import is_known, known_merges
from bench.merging.noise import Noise
from bench.merging.parts import MergingBench, merging_parts
from bench.merging.published import PUBLISHED_S
from bench.merging.runs import Outcomes, run_missing
from bench.merging.scope import SCHEMES, full, quick, settings_of
from bench.merging.simulated import run
from bench.merging.trial import Trial, rival
from bench.report import report, write_artefacts
from infra.errors import CommandError

PROFILES = Path(__file__).parents[3] / "../shared/profiles"
measured = pytest.mark.skipif(not PROFILES.exists(), reason="the measured profiles are not here")


def setting(jobs: int = 8):
    (one,) = settings_of(PROFILES, "roberta-base", None, quick=True, seed=0)
    return replace(one, first=jobs)


def conditions(folder, profiles=PROFILES, model="roberta-base") -> Conditions:
    console = Console(file=io.StringIO())
    return Conditions(True, 0, folder, 1, folder, (), console, profiles, model)


@measured
def test_every_job_is_over_and_runs_with_noise_are_others():
    plain = run(Trial(setting(), modes=()))
    assert [job.name for job in plain.jobs] == [job.name for job in setting().read()[1]]
    assert plain.met == 8
    assert plain.merges == plain.undone == 0
    assert all(job.ended_s > job.submitted_s for job in plain.jobs)
    assert plain.average_s <= plain.tail_s <= plain.makespan_s
    noisy = run(Trial(setting(), modes=(), noise=Noise(steps=1.0, seed=2)))
    assert noisy.average_s != plain.average_s


@measured
def test_cold_switches_cost_a_rival_more():
    cold, warm = (run(rival(setting(), "srtf", "interval", warm)) for warm in (False, True))
    assert cold.average_s > warm.average_s


@measured
def test_what_is_there_is_not_run_again(tmp_path):
    said = io.StringIO()
    trials = [rival(setting(2), "tiresias", "interval"), rival(setting(2), "srtf", "interval")]
    run_missing(trials[:1], Outcomes(tmp_path, "s"), 1, Console(file=said, width=200))
    run_missing(trials[:1], Outcomes(tmp_path, "s"), 1, Console(file=said, width=200))
    assert said.getvalue().count("\n") == 1
    outcomes = Outcomes(tmp_path, "s")
    assert outcomes.missing(trials) == trials[1:]
    assert len(outcomes.of(trials[0]).jobs) == 2
    assert Outcomes(tmp_path, "other sources").missing(trials) == trials
    (kept,) = (tmp_path / "runs").iterdir()
    kept.write_text('{"outcome": {}}')
    with pytest.raises(CommandError, match="no result of a run"):
        Outcomes(tmp_path, "s").find(trials[0])


@measured
def test_a_pair_is_known_whole_or_not_at_all():
    profiles, jobs = settings_of(PROFILES, "roberta-base", None, quick=False, seed=0)[0].read()
    tasks = sorted({job.task for job in jobs})
    pairs = [(a, b) for a in tasks for b in tasks if a < b]
    known = [pair for pair in pairs if is_known(*pair)]
    assert all(is_known(b, a) == is_known(a, b) for a, b in pairs)
    assert 0.3 < len(known) / len(pairs) < 0.7
    found = known_merges(profiles, jobs)
    assert {past.mode for past in found} == {"temporal", "spatial"}
    assert len(found) <= 4 * len(known)


@measured
def test_fairness_is_told_for_each_job():
    one = setting(4)
    outcome = run(Trial(one, modes=()))
    table = tables.fairness("figure_12", {Trial(one, modes=()): outcome})
    assert 1 <= len(table.rows) <= 4
    assert 0 <= tables.unfair_pct(one, outcome) <= 100


@pytest.mark.long
@measured
def test_parts_bring_their_figures_and_artefacts(tmp_path):
    whole = quick((setting(4),))
    scope = replace(whole, large_nodes=2, large_jobs=6, datasets=(3,), rivals_of=())
    parts = dict(MergingBench(conditions(tmp_path), scope).parts())
    assert {"merger", "schemes", "switches", "knowledge", "modes", "noise", "step times", "loads"} <= set(
        parts
    )
    results = [parts[name]() for name in ("schemes", "knowledge", "modes", "noise", "step times", "loads")]
    measurements = [one for result in results for one in result.measurements]
    assert {one.name for one in measurements} <= set(goals("merging"))
    assert "jct_roberta_base_s" in {one.name for one in measurements}
    every = [table for result in results for table in result.tables]
    document = report("merging", measurements, quick=True, seed=0)
    assert all("simulated" in figure["note"] for figure in document["figures"])
    write_artefacts(tmp_path, document, every)
    assert len(list(tmp_path.glob("*.csv"))) == len({table.name for table in every})


def test_missing_measurements_are_named(tmp_path):
    with pytest.raises(CommandError, match="--profiles"):
        list(merging_parts(conditions(tmp_path, profiles=tmp_path / "none")))


def test_the_full_form_has_every_rival_and_load_of_the_paper():
    settings = settings_of(PROFILES, None, None, quick=False, seed=0)
    scope = full(settings)
    assert scope.loads == (1.0, 1.5, 2.0)
    assert [scope.large(settings[0], load).drawn for load in scope.loads] == [1_500, 2_250, 3_000]
    assert scope.large(settings[0], 1.0).cluster.gpus == 240
    assert {trial.scheme for trial in scope.rivals(settings[0])} == set(SCHEMES)
    assert len(scope.rivals(settings[0])) == 2 * len(SCHEMES)
    assert PUBLISHED_S.keys() == {one.model for one in settings}
