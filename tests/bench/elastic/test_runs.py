"""Results are kept one by one, so that what was stopped goes on; those of other code are not used."""

import io

import pytest
from rich.console import Console

from bench.elastic.runs import Outcomes, run_missing
from bench.elastic.trial import Setting, Trial
from infra.errors import CommandError

TINY = Setting(seed=1, factor=0.02, first_day=4.0, days=0.05)
TRIALS = [Trial(TINY, scheme="fifo", loans=False), Trial(TINY, loans=False), Trial(TINY)]


@pytest.mark.long
def test_what_is_there_is_not_run_again(tmp_path):
    said = io.StringIO()
    run_missing(TRIALS[:1], Outcomes(tmp_path, "s"), 1, Console(file=said, width=200))
    assert said.getvalue().count("\n") == 1
    (kept,) = (tmp_path / "runs").iterdir()
    written = kept.stat().st_mtime_ns
    run_missing(TRIALS[:2], Outcomes(tmp_path, "s"), 2, Console(file=said, width=200))
    assert said.getvalue().splitlines()[1].startswith("1 of 1, ")
    assert kept.stat().st_mtime_ns == written
    outcomes = Outcomes(tmp_path, "s")
    assert outcomes.missing(TRIALS) == TRIALS[2:]
    assert outcomes.of(TRIALS[0]).requests == outcomes.of(TRIALS[1]).requests
    assert outcomes.of(TRIALS[0])["rss_mb"] > 20
    assert Outcomes(tmp_path, "other sources").missing(TRIALS) == TRIALS
    with pytest.raises(KeyError, match="lyra, basic, loans: 72"):
        outcomes.of(TRIALS[2])
    kept.write_text('{"outcome": {}}')
    with pytest.raises(CommandError, match="no result of a run"):
        Outcomes(tmp_path, "s").find(TRIALS[0])
