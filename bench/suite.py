"""The suites of `millrace bench`: their parts, and the sources that determine their figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pkgutil import resolve_name
from typing import Any, Generic, TypeVar

from bench.figures import Conditions, Result
from bench.runs import Experiment, OutcomeT, Runs, TrialT, jobs_at_once

ScopeT = TypeVar("ScopeT")


class SuiteRun(Generic[ScopeT, TrialT, OutcomeT]):
    """One run of a suite: its conditions, its sizes, and trials that parts share."""

    def __init__(
        self, conditions: Conditions, scope: ScopeT, experiment: Experiment[TrialT, OutcomeT] | None = None
    ) -> None:
        self.conditions = conditions
        self.scope = scope
        self._experiment = experiment
        self.jobs = jobs_at_once(conditions.jobs, conditions.console)

    @cached_property
    def runs(self) -> Runs[TrialT, OutcomeT]:
        """Outcomes of the suite's trials in the folder of the results."""
        assert self._experiment is not None
        return Runs(self.conditions.folder, self._experiment)

    def run(self, trials: Sequence[TrialT]) -> Runs[TrialT, OutcomeT]:
        """Run the trials without an outcome, and return all outcomes.

        Raises:
            CommandError: a trial fails, or a file operation fails.
        """
        self.runs.complete(trials, self.jobs, self.conditions.console)
        return self.runs


Measure = Callable[[SuiteRun[ScopeT, TrialT, OutcomeT]], Result]


@dataclass(frozen=True)
class SuitePart(Generic[ScopeT, TrialT, OutcomeT]):
    """A part of a suite.

    Attributes:
        title: name for `--only` and in gate files.
        measure: returns its figures and tables.
        applies: whether it belongs to a run under these conditions, on this machine.
    """

    title: str
    measure: Measure[ScopeT, TrialT, OutcomeT]
    applies: Callable[[Conditions], bool] = lambda _: True


@dataclass(frozen=True)
class Suite(Generic[ScopeT, TrialT, OutcomeT]):
    """A suite as its module declares it.

    Attributes:
        parts: in order; parts that must run alone come first.
        scope: returns the sizes of the full or the quick form, and checks the inputs.
        experiment: the trials that its parts share, if any.
    """

    parts: tuple[SuitePart[ScopeT, TrialT, OutcomeT], ...]
    scope: Callable[[Conditions], ScopeT]
    experiment: Experiment[TrialT, OutcomeT] | None = None

    def bench(self, conditions: Conditions) -> SuiteRun[ScopeT, TrialT, OutcomeT]:
        """Prepare a run of the suite.

        Raises:
            CommandError: an input is absent or invalid.
        """
        return SuiteRun(conditions, self.scope(conditions), self.experiment)

    def due(self, conditions: Conditions) -> list[SuitePart[ScopeT, TrialT, OutcomeT]]:
        """Return the parts of a run under these conditions."""
        return [part for part in self.parts if part.applies(conditions)]


def by_size(name: str) -> Callable[[SuiteRun[Any, Any, Any]], Result]:
    """Return a measure by the name `module:function` of a function of `quick` and `seed`. The module is
    imported when the part runs, because torch takes seconds to import."""
    return lambda bench: _call(name, bench.conditions.quick, bench.conditions.seed)


def by_conditions(name: str) -> Callable[[SuiteRun[Any, Any, Any]], Result]:
    """Return a measure like `by_size`, by a function of the conditions."""
    return lambda bench: _call(name, bench.conditions)


def _call(name: str, *arguments: object) -> Result:
    result = resolve_name(name)(*arguments)
    assert isinstance(result, Result)
    return result


@dataclass(frozen=True)
class SuiteEntry:
    """Declaration of a suite, and the sources that it measures.

    Attributes:
        declaration: `module:variable`, imported when the suite runs.
        sources: packages that determine its figures, its own included, from the root of the checkout.
    """

    declaration: str
    sources: tuple[str, ...]

    def suite(self) -> Suite[Any, Any, Any]:
        """Import the declaration."""
        found = resolve_name(self.declaration)
        assert isinstance(found, Suite)
        return found


_PRODUCT = ("schemas", "solvers", "streams", "infra", "executors")
SUITES = {
    "spine": SuiteEntry("bench.spine.parts:SUITE", (*_PRODUCT, "bench/spine")),
    "auction": SuiteEntry(
        "bench.auction.parts:SUITE",
        (*_PRODUCT, "bench/workloads", "bench/auction"),
    ),
    "elastic": SuiteEntry("bench.elastic.parts:SUITE", (*_PRODUCT, "bench/elastic")),
    "merging": SuiteEntry("bench.merging.parts:SUITE", (*_PRODUCT, "bench/merging")),
    "moe": SuiteEntry("bench.moe.parts:SUITE", (*_PRODUCT, "bench/network.py", "bench/moe")),
    "testbed": SuiteEntry("bench.testbed.parts:SUITE", (*_PRODUCT, "bench/testbed")),
    "start": SuiteEntry("bench.start:SUITE", (*_PRODUCT, "bench/start.py")),
}
