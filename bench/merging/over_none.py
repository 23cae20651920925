"""What merging brings over the same scheme without it, setting by setting, and over rivals with the same
switches."""

from collections.abc import Mapping

from bench.figures import Measurement, Result, Table, Value
from bench.merging.simulated import Outcome
from bench.merging.trial import Setting, Trial

_COLUMNS = (
    "model",
    "half",
    "jobs",
    "load",
    "seed",
    "average_s",
    "average_without_s",
    "gain_pct",
    "slowest_s",
    "slowest_without_s",
    "slowest_later_pct",
    "merges",
    "undone",
    "warm_rival_s",
    "cold_rival_s",
)


def over_none(runs: Mapping[Setting, Mapping[Trial, Outcome]]) -> Result:
    """A row per setting, and the worst of them.

    Args:
        runs: of each setting with merging, without, and of rivals with warm switches and with cold ones.
    """
    rows: list[tuple[Value, ...]] = []
    gains: dict[Setting, float] = {}
    later: dict[Setting, float] = {}
    over_rivals: dict[Setting, float] = {}
    for setting, of in runs.items():
        ours, without = of[Trial(setting)], of[Trial(setting, modes=())]
        rivals = {trial: run.average_s for trial, run in of.items() if trial.scheme != "ymir"}
        warm = min((value for trial, value in rivals.items() if trial.warm_switches), default=None)
        cold = min((value for trial, value in rivals.items() if not trial.warm_switches), default=None)
        gains[setting] = 100.0 * (1.0 - ours.average_s / without.average_s)
        later[setting] = 100.0 * (ours.slowest_s / without.slowest_s - 1.0)
        if warm is not None:
            over_rivals[setting] = 100.0 * (1.0 - ours.average_s / warm)
        rows.append(
            (
                setting.model,
                setting.half,
                float(len(ours.jobs)),
                setting.load,
                float(setting.seed),
                ours.average_s,
                without.average_s,
                gains[setting],
                ours.slowest_s,
                without.slowest_s,
                later[setting],
                float(ours.merges),
                float(ours.undone),
                warm,
                cold,
            )
        )
    least, most = min(gains, key=gains.__getitem__), max(later, key=later.__getitem__)
    held = [gain for setting, gain in gains.items() if setting.half == "held"]
    mean = sum(gains.values()) / len(gains)
    measured = [
        Measurement(
            "merging_over_none_min_pct",
            gains[least],
            f"simulated, by how much merging shortens the mean completion time, the least of {len(gains)} "
            f"settings: {least}",
            len(gains),
        ),
        Measurement(
            "merging_over_none_mean_pct",
            mean,
            f"the same, mean of all; of the held half of the tasks {sum(held) / max(len(held), 1):.2f}",
            len(gains),
        ),
        Measurement(
            "merging_tail_over_none_max_pct",
            later[most],
            f"simulated, by how much the slowest job takes longer with merging, the most of {len(later)} "
            f"settings: {most}",
            len(later),
        ),
    ]
    if over_rivals:
        worst = min(over_rivals, key=over_rivals.__getitem__)
        measured.append(
            Measurement(
                "merging_over_warm_rivals_min_pct",
                over_rivals[worst],
                "simulated, by how much the mean is shorter than that of the best rival with the same warm "
                f"switches, the least of {len(over_rivals)} settings: {worst}",
                len(over_rivals),
            )
        )
    return Result(tuple(measured), (Table("over_none", _COLUMNS, rows),))
