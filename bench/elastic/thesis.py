"""The figures that the thesis prints (sections 3.7.2 to 3.7.4), to be set beside ours.

Figures 3.12 and 3.14 to 3.16 are pictures; of these, only what the text says of them is here.
"""

from collections.abc import Mapping

Printed = Mapping[str, float]
"""By the names of an outcome's values."""

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

_TABLE_3_5: Mapping[int, tuple[float | None, ...]] = {
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

TABLE_3_5: Mapping[int, Printed] = {
    row: {name: value for name, value in zip(METRICS, values, strict=True) if value is not None}
    for row, values in _TABLE_3_5.items()
}
"""By row."""

TABLE_3_6: Mapping[str, Printed] = {
    scenario: {"queue_mean_s": queue_s, "jct_mean_s": jct_s, "preemption_ratio": ratio}
    for scenario, queue_s, jct_s, ratio in (
        ("basic", 2_231, 13_872, 0.1322),
        ("advanced", 1_944, 12_474, 0.1004),
        ("ideal", 1_273, 9_982, 0.1093),
    )
}
"""By scenario."""

TIMES = ("queue_mean_s", "queue_p50_s", "queue_p95_s", "jct_mean_s", "jct_p50_s", "jct_p95_s")
"""Columns of Table 3.7."""

TABLE_3_7: Mapping[str, Printed] = {
    "baseline": dict(zip(TIMES, (4_573, 1_283, 23_351, 11_547, 2_122, 60_170), strict=True)),
    "lyra": dict(zip(TIMES, (1_119, 274, 7_256, 6_887, 1_373, 35_776), strict=True)),
}
"""By scheme."""

QUANTILES = tuple(f"{kind}_p{percent}_s" for kind in ("queue", "jct") for percent in (50, 75, 95, 99))
"""Columns of Table 3.8."""

TABLE_3_8: Mapping[int, Printed] = {
    row: dict(zip(QUANTILES, values, strict=True))
    for row, values in {
        1: (55, 1_892, 8_357, 14_323, 791, 29_163, 82_933, 376_513),
        10: (49, 1_764, 6_632, 11_806, 755, 27_244, 80_567, 323_626),
        11: (58, 1_297, 5_883, 11_124, 721, 12_304, 72_123, 323_513),
        12: (47, 772, 3_488, 9_031, 686, 20_143, 60_883, 247_435),
        13: (47, 697, 3_475, 8_731, 602, 12_072, 57_597, 223_815),
        14: (43, 566, 2_749, 7_112, 564, 9_293, 52_458, 194_391),
    }.items()
}
"""By row of Table 3.5. As printed: the lines of AFS and Pollux agree with Table 3.5 if they are swapped."""

TABLE_3_9: Mapping[float, tuple[float, float]] = {0.2: (2.21, 1.52), 0.4: (2.17, 1.49), 0.6: (1.76, 1.38)}
"""Reductions of mean queuing time and JCT against the baseline, by the share of wrong predictions."""

FIGURE_3_12: Mapping[str, tuple[float, float]] = {"smallest_count": (1.51, 1.68), "random": (1.36, 1.59)}
"""Without scaling, the preemption ratio and the collateral damage over Lyra's (section 3.7.3)."""

LOSSY_JCT_REDUCTION = 1.86
"""Figure 3.16: of mean JCT against the baseline where all jobs are elastic and scale imperfectly."""
