"""Days with a night: the default on the first, the second and the fourth of them, when it knows the hours.

Its rivals remember no day, so their fourth day is their first.
"""

from bench.auction.everyday import Everyday, Welfare, gains_of, least_gain
from bench.auction.runs.contenders import DEFAULT, HINDSIGHT_PRICE
from bench.auction.runs.later_days import FOURTH_DAY, SECOND_DAY
from bench.auction.runs.pool import Rows
from bench.auction.runs.trial import Trial
from bench.charts import Lines
from bench.figures import Measurement, Result, Table, Value

WORKING_DAY = "working day"
"""What tables call its arrivals."""
NIGHT_PART = 1 / 20
"""Arrivals per slot from 18 to 8 o'clock, as a part of those from 8 to 18."""
WORKING_LOADS = (1.0, 2.0, 4.0)

_OTHERS = (DEFAULT, SECOND_DAY, "eft", HINDSIGHT_PRICE)


def trials_of(days: Everyday) -> list[Trial]:
    """Every contender on every day."""
    return [
        Trial(load.setting, seed, name)
        for load in days.loads
        for name in (FOURTH_DAY, *_OTHERS)
        for seed in days.seeds
    ]


def working_days(days: Everyday, rows: Rows) -> Result:
    """What the fourth day brings over the first, and over the best fixed price of the very day.

    Raises:
        CommandError: there is no welfare to compare with.
    """
    welfare = Welfare(rows, days.seeds)

    def least(name: str, other: str) -> Measurement:
        return least_gain(name, gains_of(welfare, days.loads, FOURTH_DAY, other), len(days.seeds))

    lines: list[tuple[Value, ...]] = [
        (load.series, load.load, *(welfare.part(load, other, FOURTH_DAY) for other in _OTHERS))
        for load in days.loads
    ]
    columns = ("workload", "load", "first_day_part", "second_day_part", "eft_part", f"{HINDSIGHT_PRICE}_part")
    label = f"welfare / of the fourth day, mean of {len(days.seeds)} days"
    table = Table("working_days", columns, lines, Lines("workload", "load", columns[2:3], label, "load"))
    return Result(
        (
            least("fourth_day_over_first_min_pct", DEFAULT),
            least("fourth_day_over_fixed_hindsight_min_pct", HINDSIGHT_PRICE),
        ),
        (table,),
    )
