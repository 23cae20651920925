"""The extent of a benchmark: the thesis' evaluation in full, or a form of it that takes two minutes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from bench.elastic.trial import Setting, Trial
from schemas.elastic.settings import ReclaimingName, Scenario, SchemeName

WAYS: tuple[ReclaimingName, ...] = ("random", "smallest_count", "preemption_cost")

TUNED_LYRA = "lyra+tuned"
SCALING_SCHEMES = ("gandiva", "afs", "pollux", "lyra", TUNED_LYRA)
"""Of Figures 3.14 and 3.15."""

_QUICK_BUSY_DAY = 4.0
"""A Monday."""


@dataclass(frozen=True)
class Scope:
    """The settings and runs of each part."""

    setting: Setting
    """Of all comparisons."""
    timed: Setting
    """Whose time and memory are measured."""
    growth: tuple[Setting, ...]
    rows: tuple[int, ...]
    """Of Table 3.5."""
    untuned_schemes: tuple[SchemeName, ...]
    """That run without tuned jobs too, beside rows 12 and 14 of Table 3.5."""
    ungrouped: tuple[Scenario, ...]
    """Of Table 3.6."""
    wrong_shares: tuple[float, ...]
    """Of Table 3.9."""
    ways_with_scaling: bool
    """Whether Figure 3.12 has its second half."""
    elastic_shares: tuple[float, ...]
    """Of Figures 3.14 and 3.15."""
    elastic_schemes: tuple[str, ...]
    lossy_shares: tuple[float, ...]
    """Of Figure 3.16."""

    def row(self, number: int) -> Trial:
        """The run of a row of Table 3.5."""
        return table_3_5(self.setting)[number]


def full(seed: int) -> Scope:
    """Fifteen days on the thesis' clusters."""
    whole = Setting(seed)
    shares = (0.2, 0.4, 0.6, 0.8, 1.0)
    return Scope(
        setting=whole,
        timed=whole,
        growth=tuple(replace(whole, days=days) for days in (2.0, 4.0, 8.0, 15.0)),
        rows=tuple(range(1, 15)),
        untuned_schemes=("pollux", "lyra"),
        ungrouped=("basic", "advanced", "ideal"),
        wrong_shares=(0.2, 0.4, 0.6),
        ways_with_scaling=True,
        elastic_shares=shares,
        elastic_schemes=SCALING_SCHEMES,
        lossy_shares=shares,
    )


def quick(seed: int) -> Scope:
    """A busy day, whose cluster is at work when it begins: on clusters of a quarter of the size, but for the
    run whose time is measured."""
    day = Setting(seed, first_day=_QUICK_BUSY_DAY, days=1.0)
    quarter = replace(day, factor=0.25)
    return Scope(
        setting=quarter,
        timed=day,
        growth=tuple(replace(quarter, first_day=0.0, days=days) for days in (1.0, 2.0)),
        rows=(1, 2, 7, 8, 9, 12, 13, 14),
        # A run of Pollux takes as long as ten others.
        untuned_schemes=("lyra",),
        ungrouped=("basic",),
        wrong_shares=(0.6,),
        ways_with_scaling=False,
        elastic_shares=(1.0,),
        elastic_schemes=("lyra",),
        lossy_shares=(1.0,),
    )


def table_3_5(setting: Setting) -> Mapping[int, Trial]:
    """The runs of its rows. Rows 6 to 9 lend and do not scale, rows 10 to 14 scale and do not lend
    (thesis, sections 3.7.3 and 3.7.4). Pollux tunes its jobs; it would be nothing without."""
    lent = Trial(setting, elastic_share=0.0)
    scaled = Trial(setting, loans=False)
    return {
        1: baseline(setting),
        2: Trial(setting),
        3: Trial(setting, scenario="advanced"),
        4: Trial(setting, scenario="heterogeneous"),
        5: Trial(setting, scenario="ideal"),
        6: replace(lent, scheme="opportunistic", reclaiming="random"),
        7: replace(lent, reclaiming="random"),
        8: replace(lent, reclaiming="smallest_count"),
        9: lent,
        10: replace(scaled, scheme="gandiva"),
        11: replace(scaled, scheme="afs"),
        12: replace(scaled, scheme="pollux", scaling="tuned"),
        13: scaled,
        14: replace(scaled, scaling="tuned"),
    }


LABELS: Mapping[int, str] = {
    1: "1 baseline",
    2: "2 basic",
    3: "3 advanced",
    4: "4 heterogeneous",
    5: "5 ideal",
    6: "6 loans: opportunistic",
    7: "7 loans: random",
    8: "8 loans: smallest count",
    9: "9 loans: lyra",
    10: "10 scaling: gandiva",
    11: "11 scaling: afs",
    12: "12 scaling: pollux",
    13: "13 scaling: lyra",
    14: "14 scaling: lyra, tuned",
}
"""Of the rows of Table 3.5."""


def baseline(setting: Setting) -> Trial:
    """First in, first out, without loans. It never scales, so it is the same whatever jobs are able to do."""
    return Trial(setting, scheme="fifo", loans=False)


def scaling_trial(setting: Setting, scheme: str, share: float) -> Trial:
    """A scheme of Figures 3.14 and 3.15, where so large a part of the jobs is elastic."""
    return replace(table_3_5(setting)[_ROW_OF_SCHEME[scheme]], elastic_share=share)


_ROW_OF_SCHEME = dict(zip(SCALING_SCHEMES, range(10, 15), strict=True))
