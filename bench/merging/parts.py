"""The parts of `millrace bench merging`: what each runs, and the figures that come of the results."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.cores import jobs_at_once
from bench.figures import Conditions, Measurement, Part, Result
from bench.merging import tables
from bench.merging.measured_parts import measured_parts
from bench.merging.noise import Noise
from bench.merging.over_none import over_none
from bench.merging.published import PUBLISHED_S
from bench.merging.runs import Outcomes, run_missing
from bench.merging.scope import FAIR_SCHEMES, Scope, full, quick, settings_of
from bench.merging.simulated import Outcome
from bench.merging.slow_merges import measure_merger
from bench.merging.trial import Setting, Trial, rival
from infra.errors import CommandError

_CHARGED = (
    "each start of a task is charged 30 s and the measured cold start; ours, on a node that has run a task "
    "before, a tenth"
)


def merging_parts(conditions: Conditions) -> Iterator[tuple[str, Part]]:
    """The parts by name. What must run alone comes first.

    Raises:
        CommandError: the measurements are not there, or not of their form.
    """
    settings = settings_of(
        conditions.profiles, conditions.model, conditions.workload, conditions.quick, conditions.seed
    )
    for setting in settings:
        try:
            setting.read()
        except (FileNotFoundError, ValueError) as error:
            raise CommandError(f"{error}: give the folder of measurements with --profiles") from error
    scope = quick(settings) if conditions.quick else full(settings)
    yield from MergingBench(conditions, scope).parts()


class MergingBench:
    """The benchmark of one scope, whose parts share their simulated runs."""

    def __init__(self, conditions: Conditions, scope: Scope) -> None:
        self._conditions = conditions
        self._scope = scope
        self._jobs = jobs_at_once(conditions.jobs, conditions.console)
        self._outcomes: Outcomes | None = None

    def parts(self) -> Iterator[tuple[str, Part]]:
        """By name."""
        conditions, scope = self._conditions, self._scope
        yield "merger", partial(measure_merger, conditions.quick, conditions.seed, scope.settings)
        yield from measured_parts(conditions, scope)
        yield "schemes", self._schemes
        yield "over none", self._over_none
        yield "switches", self._switches
        yield "knowledge", self._knowledge
        yield "modes", self._modes
        yield "noise", self._noise
        yield "step times", self._step_times
        yield "fairness", self._fairness
        yield "loads", self._loads

    def _schemes(self) -> Result:
        """Compare jobs' completion times with those of all rivals and the published ones."""
        runs = self._run(
            {
                setting: (
                    Trial(setting),
                    Trial(setting, modes=()),
                    *(self._scope.rivals(setting) if setting.model in self._scope.rivals_of else ()),
                )
                for setting in self._scope.settings
            }
        )
        measurements: list[Measurement] = []
        for setting, by_trial in runs.items():
            measurements += self._against_rivals(setting, by_trial)
        ours = [(setting, by_trial[Trial(setting)]) for setting, by_trial in runs.items()]
        return Result(
            tuple(measurements),
            (
                *(
                    tables.compared(f"schemes_{setting.model}", by_trial, self._published(setting))
                    for setting, by_trial in runs.items()
                ),
                tables.accuracy("table_4", ours),
                tables.participation("table_5", ours),
            ),
        )

    def _against_rivals(self, setting: Setting, runs: Mapping[Trial, Outcome]) -> Iterator[Measurement]:
        ours, name = runs[Trial(setting)], _figure_name(setting)
        beside = self._published(setting)
        best = f", the best published value is {min(beside.values()):g} s" if beside else ""
        without = runs[Trial(setting, modes=())].average_s
        note = (
            f"simulated, mean of {len(ours.jobs)} jobs; without merging {without:.0f} s{best}; nothing known "
            f"of any merge beforehand; {_CHARGED}: {setting}"
        )
        yield Measurement(f"jct_{name}_s", ours.average_s, note, len(ours.jobs))
        met = 100.0 * ours.met / len(ours.jobs)
        yield Measurement(
            f"met_target_{name}_pct",
            met,
            f"simulated, {ours.met} of {len(ours.jobs)} jobs met their accuracy target; {ours.merges} "
            f"merges, {ours.undone} jobs of them undone: {setting}",
            len(ours.jobs),
        )
        rivals = {trial: run for trial, run in runs.items() if trial.scheme != "ymir"}
        if not rivals:
            return
        for figure, measure in _MEASURES.items():
            trial = min(rivals, key=lambda one: measure(rivals[one]))
            value, least = measure(ours), measure(rivals[trial])
            yield Measurement(
                f"{figure}_{name}_vs_best_rival",
                value / least,
                f"simulated, {value:.0f} s over {least:.0f} s of {tables.label(trial)}, the best of "
                f"{len(rivals)} runs of rivals; {_CHARGED}: {setting}",
                len(rivals),
            )

    def _over_none(self) -> Result:
        """Merging beside the same scheme without merging, and beside rivals with the same warm switches."""
        scope = self._scope
        runs = self._run(
            {
                setting: (
                    Trial(setting),
                    Trial(setting, modes=()),
                    Trial(setting, knowledge="half"),
                    *(
                        rival(setting, scheme, "eager", warm)
                        for scheme in scope.warm_rivals
                        for warm in (True, False)
                    ),
                )
                for setting in scope.compared
            }
        )
        return over_none(runs)

    def _switches(self) -> Result:
        """Measure the gains of merging and of cheap switches: each with and without the other."""
        runs = self._run(
            {
                setting: (
                    *(
                        Trial(setting, warm_switches=warm, modes=modes)
                        for warm in (True, False)
                        for modes in (("temporal", "spatial"), ())
                    ),
                    *(
                        trial
                        for warm in (True, False)
                        for trial in self._scope.rivals(setting, warm)
                        if not self._conditions.quick or trial.scheme in ("optimus", "pollux")
                    ),
                )
                for setting in self._scope.settings
                if setting.model in self._scope.rivals_of
            }
        )
        return Result(
            (),
            tuple(tables.compared(f"switches_{setting.model}", of, {}) for setting, of in runs.items()),
        )

    def _knowledge(self) -> Result:
        """Measure what outcomes of half of the pairs bring a newcomer."""
        runs = self._run(
            {
                setting: (Trial(setting), Trial(setting, knowledge="half"), Trial(setting, modes=()))
                for setting in self._scope.studied
            }
        )
        return Result(
            (), tuple(tables.compared(f"knowledge_{setting.model}", of, {}) for setting, of in runs.items())
        )

    def _modes(self) -> Result:
        """Figure 14: modes, and how many datasets there are."""
        by_modes = self._run(
            {
                setting: tuple(
                    Trial(setting, modes=modes)
                    for modes in (("temporal", "spatial"), ("temporal",), ("spatial",), ())
                )
                for setting in self._scope.studied
            }
        )
        some = [
            replace(setting, tasks=tasks, drawn=setting.first)
            for setting in self._scope.studied
            for tasks in self._scope.datasets
        ]
        by_tasks = self._run({setting: (Trial(setting), Trial(setting, modes=())) for setting in some})
        points = (
            (setting.model, float(setting.tasks or 0), of[Trial(setting)], of[Trial(setting, modes=())])
            for setting, of in by_tasks.items()
        )
        return Result(
            (),
            (
                *(tables.compared(f"figure_14a_{setting.model}", of, {}) for setting, of in by_modes.items()),
                tables.speedups("figure_14b", "datasets", points),
            ),
        )

    def _noise(self) -> Result:
        """Figures 8 and 13."""
        scope = self._scope
        kinds: Mapping[str, Callable[[float, int], Noise]] = {
            "gains": lambda scale, seed: Noise(gains=scale, seed=seed),
            "iterations": lambda scale, seed: Noise(iterations=scale, seed=seed),
            "steps": lambda scale, seed: Noise(steps=scale, seed=seed),
        }
        noisy = {
            (setting, kind, scale, seed): Trial(setting, noise=make(scale, seed))
            for setting in scope.studied
            for kind, make in kinds.items()
            for scale in scope.noises
            for seed in range(scope.noise_seeds)
        }
        plain = {
            setting: (
                Trial(setting),
                Trial(setting, modes=()),
                *(trial for key, trial in noisy.items() if key[0] == setting),
            )
            for setting in scope.studied
        }
        runs = self._run(plain)
        points = [
            (f"{setting.model} {kind}", 100.0 * scale, runs[setting][trial], _without(runs, setting))
            for (setting, kind, scale, _), trial in noisy.items()
        ]
        points += [
            (
                f"{setting.model} none",
                100.0 * min(scope.noises) / 2,
                of[Trial(setting)],
                _without(runs, setting),
            )
            for setting, of in runs.items()
        ]
        return Result((), (tables.speedups("figures_8_and_13", "noise_pct", points),))

    def _step_times(self) -> Result:
        """Table 6, first row: the lookup table beside steps that scale linearly."""
        runs = self._run(
            {setting: (Trial(setting), Trial(setting, linear_steps=True)) for setting in self._scope.studied}
        )
        return Result(
            (), tuple(tables.compared(f"table_6_{setting.model}", of, {}) for setting, of in runs.items())
        )

    def _fairness(self) -> Result:
        """Figure 12, on the workloads as they are."""
        runs = self._run(
            {
                setting: (
                    Trial(setting),
                    *(rival(setting, scheme, "interval") for scheme in FAIR_SCHEMES),
                )
                for setting in self._scope.settings
                if setting.model in self._scope.rivals_of
            }
        )
        shares = "; ".join(
            f"{setting.model} {tables.label(trial)} {tables.unfair_pct(setting, run):.1f}"
            for setting, of in runs.items()
            for trial, run in of.items()
        )
        first = next(iter(runs))
        measured = Measurement(
            "unfair_pct",
            tables.unfair_pct(first, runs[first][Trial(first)]),
            f"simulated, jobs of {first} with a finish-time fairness above 1; all, in percent: {shares}",
        )
        every = {trial: run for of in runs.values() for trial, run in of.items()}
        return Result((measured,), (tables.fairness("figure_12", every),))

    def _loads(self) -> Result:
        """Figure 11."""
        scope = self._scope
        large = [scope.large(setting, load) for setting in scope.studied for load in scope.loads]
        runs = self._run(
            {
                setting: (
                    Trial(setting),
                    Trial(setting, modes=()),
                    *(rival(setting, scheme, "interval") for scheme in scope.large_schemes),
                )
                for setting in large
            }
        )
        every = {trial: run for of in runs.values() for trial, run in of.items()}
        return Result((), (tables.loads("figure_11", every),))

    def _run(self, trials: Mapping[Setting, Sequence[Trial]]) -> dict[Setting, dict[Trial, Outcome]]:
        if self._outcomes is None:
            self._outcomes = Outcomes(self._conditions.folder)
        every = [trial for some in trials.values() for trial in some]
        run_missing(every, self._outcomes, self._jobs, self._conditions.console)
        return {
            setting: {trial: self._outcomes.of(trial) for trial in some} for setting, some in trials.items()
        }

    @staticmethod
    def _published(setting: Setting) -> Mapping[str, float]:
        """Return figures of the source's own simulator, where the jobs are the ones that it has run."""
        is_whole = setting.first is None and setting.drawn is None
        named = Path(setting.workload).name == f"FM-1-{setting.model}.csv"
        return PUBLISHED_S.get(setting.model, {}) if is_whole and named else {}


def _figure_name(setting: Setting) -> str:
    """Part of the names of a setting's figures: the model, and its workload if that is not its own."""
    workload = Path(setting.workload).stem
    words = setting.model if workload == f"FM-1-{setting.model}" else f"{setting.model}_{workload}"
    return re.sub(r"[^A-Za-z0-9]+", "_", words)


_MEASURES: Mapping[str, Callable[[Outcome], float]] = {
    "jct": lambda run: run.average_s,
    "tail": lambda run: run.tail_s,
    "makespan": lambda run: run.makespan_s,
}


def _without(runs: Mapping[Setting, Mapping[Trial, Outcome]], setting: Setting) -> Outcome:
    return runs[setting][Trial(setting, modes=())]
