"""Rows made by hand, and settings that take a moment."""

from pathlib import Path

from bench.auction.runs.pool import Rows
from bench.auction.runs.trial import Row, Trial
from bench.workloads.paper import PaperSetting

TINY = PaperSetting(nodes=3, slots=12, arrivals_per_slot=4.0, work_scale=0.1)


def row(trial: Trial, sources: str = "s", alone: bool = True, **values: float) -> Row:
    return Row(trial.setting_name, trial.seed, trial.contender, alone, sources, values)


def rows_of(folder: Path, welfare: dict[tuple[PaperSetting, int, str], float]) -> Rows:
    """Rows of nothing but a welfare, realised as planned, by setting, seed and contender."""
    rows = Rows(folder, "s")
    for key, micros in welfare.items():
        rows.append(row(Trial(*key), welfare_micros=micros, planned_welfare_micros=micros))
    return rows


def welfare_rows(folder, loads, trials, changed=None, ratios=None) -> Rows:
    """Rows of loads: every welfare is 100 and every proven ratio 1, but for `changed` by load, seed
    and contender and `ratios` by load and seed."""
    rows = Rows(folder, "s")
    for trial in trials:
        (load,) = (load for load in loads if load.setting == trial.setting)
        welfare = (changed or {}).get((load, trial.seed, trial.contender), 100)
        ratio = (ratios or {}).get((load, trial.seed), 1.0)
        rows.append(row(trial, welfare_micros=welfare, proven_ratio=ratio))
    return rows
