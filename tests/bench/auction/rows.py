"""Outcomes made by hand, and settings that take a moment."""

from pathlib import Path

from bench.auction.comparison import AuctionRuns
from bench.auction.parts import DAYS
from bench.auction.trials import AuctionTrial
from bench.runs import Runs
from bench.workloads.paper import PaperSetting

TINY = PaperSetting(nodes=3, slots=12, arrivals_per_slot=4.0, work_scale=0.1)


def no_runs(folder: Path) -> AuctionRuns:
    return Runs(folder, DAYS, "s")


def rows_of(folder: Path, welfare: dict[tuple[PaperSetting, int, str], float]) -> AuctionRuns:
    """Outcomes of nothing but a welfare, realised as planned, by setting, seed and contender."""
    runs = no_runs(folder)
    for key, micros in welfare.items():
        runs.keep(AuctionTrial(*key), {"welfare_micros": micros, "planned_welfare_micros": micros})
    return runs


def welfare_rows(folder, loads, trials, changed=None, ratios=None) -> AuctionRuns:
    """Outcomes of loads: every welfare is 100 and every proven ratio 1, but for `changed` by load, seed
    and contender and `ratios` by load and seed."""
    runs = no_runs(folder)
    for trial in trials:
        (load,) = (load for load in loads if load.setting == trial.setting)
        welfare = (changed or {}).get((load, trial.seed, trial.contender), 100)
        ratio = (ratios or {}).get((load, trial.seed), 1.0)
        runs.keep(trial, {"welfare_micros": welfare, "proven_ratio": ratio})
    return runs
