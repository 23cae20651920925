"""What a trial measures, by its contender's name."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from bench.auction.runs.contenders import CONTENDERS
from bench.auction.runs.day import simulate_day
from bench.auction.runs.decision_time import measure_decision_time
from bench.auction.runs.optimum import measure_clearing_bound, measure_optimum
from bench.auction.runs.titan_program import measure_titan_program
from bench.auction.runs.trial import Row, Trial
from bench.workloads.paper import PaperSetting
from infra.errors import CommandError

Measure = Callable[[PaperSetting, int], dict[str, float]]
"""(setting, seed) -> values."""

OPTIMUM = "offline optimum"
CLEARING_BOUND = "clearing bound"
DECISION_TIME = "decision time"
TITANS_PROGRAM = "titan's program"


def _day(contender: str, setting: PaperSetting, seed: int) -> dict[str, float]:
    policy_of = CONTENDERS[contender]
    return simulate_day(setting, seed, lambda declared: policy_of(declared, setting, seed)).values()


MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        **{name: partial(_day, name) for name in CONTENDERS},
        OPTIMUM: measure_optimum,
        CLEARING_BOUND: measure_clearing_bound,
        DECISION_TIME: measure_decision_time,
        TITANS_PROGRAM: measure_titan_program,
    }
)


def run_trial(trial: Trial, sources: str, alone: bool) -> Row:
    """Make a trial's measurement.

    Raises:
        CommandError: naming the trial, where admitted plans violate problem P.
    """
    try:
        values = MEASURES[trial.contender](trial.setting, trial.seed)
    except CommandError as error:
        raise CommandError(f"{trial}: {error}") from None
    return Row(trial.setting_name, trial.seed, trial.contender, alone, sources, values)
