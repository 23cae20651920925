"""Tables and pictures of simulated runs beside the thesis' figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

from bench.charts import Bars, Lines
from bench.elastic import thesis
from bench.elastic.simulated import Outcome
from bench.elastic.thesis import Printed
from bench.figures import Table, Value
from infra.simulation.distribution import Distribution

MEASURED = "measured"
THESIS = "thesis"


@dataclass(frozen=True)
class Line:
    """One line of a table of the thesis, and our own run of it."""

    label: str
    measured: Mapping[str, float]
    printed: Printed


def comparable(*outcomes: Outcome) -> None:
    """Refuse to compare runs of different requests.

    Raises:
        ValueError: they are.
    """
    if len({outcome.requests for outcome in outcomes}) > 1:
        raise ValueError("these runs are of different jobs and cannot be compared")


def side_by_side(name: str, lines: Sequence[Line], metrics: Sequence[str], height: str, label: str) -> Table:
    """Two rows for each line, ours and the thesis'; drawn is one of the metrics.

    The first line is the baseline where the metrics have times: reductions are against it.
    """
    baselines = {MEASURED: lines[0].measured, THESIS: lines[0].printed}
    rows: list[tuple[Value, ...]] = []
    for line in lines:
        for source, values in ((MEASURED, line.measured), (THESIS, line.printed)):
            reductions = (
                _ratio(baselines[source].get(metric), values.get(metric)) for metric in _MEANS.values()
            )
            rows.append((line.label, source, *(values.get(metric) for metric in metrics), *reductions))
    columns = ("run", "source", *metrics, *_MEANS)
    return Table(name, columns, rows, Bars("run", "source", height, None, label))


_MEANS = {"queue_reduction": "queue_mean_s", "jct_reduction": "jct_mean_s"}
"""Of the first line over each: "reduction" is the thesis' word (section 3.7.1)."""


def _ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over and under else None


def on_loaned_servers(baseline: Outcome, lyra: Outcome) -> Table:
    """Table 3.7: the jobs that ran on loaned servers under Lyra, under both schemes."""
    comparable(baseline, lyra)
    lines = []
    for label, outcome in (("baseline", baseline), ("lyra", lyra)):
        values = {
            f"{kind}_{name}": value
            for kind, all_s in (("queue", outcome.queuing_s), ("jct", outcome.jct_s))
            for name, value in Distribution.of(list(compress(all_s, lyra.on_loaned))).as_json().items()
        }
        values["jobs"] = float(sum(lyra.on_loaned))
        lines.append(Line(label, values, thesis.TABLE_3_7[label]))
    return side_by_side(
        "table_3_7", lines, ("jobs", *thesis.TIMES), "queue_mean_s", "mean queuing time on loaned servers, s"
    )


def reclaiming(name: str, outcomes: Mapping[tuple[str, str], Outcome]) -> Table:
    """Figure 3.12: preemption ratio and collateral damage by jobs and way to choose servers, and both over
    Lyra's own way, with the thesis' figures for those where its text has them.

    Args:
        outcomes: by `without scaling` or `with scaling`, and the way.
    """
    comparable(*outcomes.values())
    rows: list[tuple[Value, ...]] = []
    for (jobs, way), outcome in outcomes.items():
        own = outcomes[jobs, "preemption_cost"]
        printed = thesis.FIGURE_3_12.get(way) if jobs == "without scaling" else None
        rows.append(
            (
                way,
                jobs,
                outcome["preemption_ratio"],
                outcome["collateral_damage"],
                outcome["flexible_share"],
                _ratio(outcome["preemption_ratio"], own["preemption_ratio"]),
                _ratio(outcome["collateral_damage"], own["collateral_damage"]),
                *(printed or (None, None)),
            )
        )
    columns = (
        "reclaiming",
        "jobs",
        "preemption_ratio",
        "collateral_damage",
        "servers_without_preemption",
        "preemptions_over_lyra",
        "damage_over_lyra",
        "thesis_preemptions_over_lyra",
        "thesis_damage_over_lyra",
    )
    chart = Bars("reclaiming", "jobs", "preemption_ratio", None, "preemptions over jobs")
    return Table(name, columns, rows, chart)


def reductions(
    name: str,
    axis: str,
    runs: Mapping[tuple[str, float], Outcome],
    baseline: Outcome,
    metric: str,
    printed: Mapping[tuple[str, float], float],
) -> Table:
    """The baseline's mean time over that of each run, by series and place on an axis.

    Args:
        axis: what varies; the places are in per cent.
        metric: of which mean.
        printed: the thesis' figures.
    """
    comparable(baseline, *runs.values())
    rows: list[tuple[Value, ...]] = [
        (
            series,
            place,
            outcome[metric],
            _ratio(baseline[metric], outcome[metric]),
            printed.get((series, place)),
        )
        for (series, place), outcome in runs.items()
    ]
    columns = ("scheme", axis, metric, "reduction", "thesis_reduction")
    return Table(
        name, columns, rows, Lines("scheme", axis, ("reduction",), f"{metric} of the baseline over it", axis)
    )
