"""Table 3.5 of the thesis: the runs of its rows, and their figures next to the printed ones."""

from collections.abc import Mapping
from dataclasses import replace

from bench.elastic.simulated import ElasticRunOutcome, ElasticSetting, ElasticTrial
from bench.figures import Table, Value

METRICS = (
    "queue_mean_s",
    "queue_p50_s",
    "queue_p95_s",
    "jct_mean_s",
    "jct_p50_s",
    "jct_p95_s",
    "training_usage",
    "overall_usage",
    "preemption_ratio",
)
"""Columns of Table 3.5."""

_PRINTED: Mapping[int, tuple[float | None, ...]] = {
    1: (3_072, 55, 8_357, 16_610, 791, 82_933, 0.72, 0.52, 0.0),
    2: (2_010, 26, 3_358, 11_236, 568, 56_477, 0.86, 0.65, 0.1224),
    3: (1_835, 24, 3_238, 10_434, 525, 56_553, 0.86, 0.68, 0.0735),
    4: (1_944, 27, 3_574, 12_113, 604, 57_392, 0.78, 0.64, 0.1123),
    5: (1_157, 22, 3_204, 8_891, 422, 41_146, 0.93, 0.72, 0.0572),
    6: (2_788, 22, 5_256, 14_828, 744, 67_843, 0.74, 0.63, 0.1935),
    7: (2_901, 23, 5_478, 14_678, 731, 62_923, 0.76, 0.64, 0.2089),
    8: (2_783, 24, 4_994, 14_923, 695, 62_456, 0.76, 0.64, 0.1748),
    9: (2_212, 23, 3_427, 12_947, 662, 57_987, 0.76, 0.65, 0.1494),
    10: (3_035, 49, 6_632, 15_912, 755, 80_567, 0.79, None, None),
    11: (2_284, 47, 3_488, 15_045, 686, 60_883, 0.95, None, None),
    12: (2_791, 58, 5_883, 14_534, 721, 72_123, 0.93, None, None),
    13: (2_275, 47, 3_475, 12_048, 602, 57_597, 0.92, None, None),
    14: (2_054, 43, 2_749, 10_229, 564, 52_458, 0.91, None, None),
}

BASIC_21 = 15
"""Row 2 in the other reading of the fungible load (erratum L5): 21 % of it in all, elastic jobs included."""

PRINTED: Mapping[int, Mapping[str, float]] = {
    row: {name: value for name, value in zip(METRICS, values, strict=True) if value is not None}
    for row, values in {**_PRINTED, BASIC_21: _PRINTED[2]}.items()
}
"""Printed figures by row."""

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
    BASIC_21: "2 basic, 21 % fungible",
}
"""Labels by row."""


def trials_by_row(setting: ElasticSetting) -> Mapping[int, ElasticTrial]:
    """Return the runs of the table's rows. Rows 6 to 9 lend and do not scale, rows 10 to 14 scale and do not
    lend (thesis, sections 3.7.3 and 3.7.4). Pollux tunes its jobs, which is essential to it."""
    lent = ElasticTrial(setting, elastic_share=0.0)
    scaled = ElasticTrial(setting, loans=False)
    return {
        1: ElasticTrial(setting, scheme="fifo", loans=False),
        2: ElasticTrial(setting),
        3: ElasticTrial(setting, scenario="advanced"),
        4: ElasticTrial(setting, scenario="heterogeneous"),
        5: ElasticTrial(setting, scenario="ideal"),
        6: replace(lent, scheme="opportunistic", reclaiming="random"),
        7: replace(lent, reclaiming="random"),
        8: replace(lent, reclaiming="smallest_count"),
        9: lent,
        10: replace(scaled, scheme="gandiva"),
        11: replace(scaled, scheme="afs"),
        12: replace(scaled, scheme="pollux", scaling="tuned"),
        13: scaled,
        14: replace(scaled, scaling="tuned"),
        BASIC_21: ElasticTrial(setting, elastic_are_fungible=False),
    }


def check_comparable(*outcomes: ElasticRunOutcome) -> None:
    """Check that runs have equal requests.

    Raises:
        ValueError: the requests differ.
    """
    if len({outcome.requests for outcome in outcomes}) > 1:
        raise ValueError("these runs are of different jobs and cannot be compared")


def table_3_5(outcomes: Mapping[int, ElasticRunOutcome]) -> Table:
    """Return two lines per row, measured and printed, with the reductions of mean times relative to row 1."""
    metrics = (*METRICS, "unfinished")
    rows: list[dict[str, Value]] = []
    for number, outcome in outcomes.items():
        for source, values, baseline in (
            ("measured", outcome.values, outcomes[1].values),
            ("thesis", PRINTED[number], PRINTED[1]),
        ):
            row: dict[str, Value] = {"run": LABELS[number], "source": source}
            row |= {metric: values.get(metric) for metric in metrics}
            row |= {name: _ratio(baseline.get(mean), values.get(mean)) for name, mean in _MEANS.items()}
            rows.append(row)
    return Table("table_3_5", rows)


_MEANS = {"queue_reduction": "queue_mean_s", "jct_reduction": "jct_mean_s"}
""""Reduction" is the thesis' word (section 3.7.1)."""


def _ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over and under else None
