"""The parts of `millrace bench merging` that measure one thing each, without a simulated zone."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from importlib import import_module
from types import ModuleType

from bench.charts import Bars
from bench.figures import Conditions, Part, Result, Table
from bench.goals import goal_of
from bench.merging.scope import Scope
from executors.processes.forked_process import warm_up
from executors.tuner import FineTuning
from infra.errors import CommandError

_STAGES = 4


def measured_parts(conditions: Conditions, scope: Scope) -> Iterator[tuple[str, Part]]:
    """Yield the parts by name."""
    profiles, is_quick, seed = conditions.profiles, conditions.quick, conditions.seed
    models = tuple(setting.model for setting in scope.settings)
    yield "estimates", partial(_called, "estimates", "estimates", profiles, models, scope.splits)
    yield "interpolation", partial(_called, "interpolation", "interpolation", profiles)
    switching = partial(_called, "switching", "measure_switching", is_quick, seed)
    yield "switching", partial(_in_workers, "switching", switching)
    transferability = partial(_called, "transferability", "measure_transferability", is_quick, seed)
    yield "transferability", transferability
    yield "pipeline switch", partial(_in_workers, "pipeline_switch", partial(_pipeline_switch, is_quick))


def _module(name: str) -> ModuleType:
    """Import a module of this folder that loads libraries only for its own part, such as torch."""
    return import_module(f"bench.merging.{name}")


def _called(module: str, name: str, *arguments: object) -> Result:
    try:
        result = getattr(_module(module), name)(*arguments)
    except (FileNotFoundError, LookupError, ValueError) as error:
        raise CommandError(str(error)) from error
    assert isinstance(result, Result)
    known = tuple(one for one in result.measurements if goal_of("merging", one.name) is not None)
    return Result(known, result.tables)


def _in_workers(module: str, part: Part) -> Result:
    """Run a part of this module, whose processes are forked from a server that has torch. The server loads it
    while this process does, on another core."""
    with ThreadPoolExecutor(1) as beside:
        server = beside.submit(warm_up, *FineTuning.MODULES)
        _module(module)
        server.result()
    return part()


def _pipeline_switch(is_quick: bool) -> Result:
    """Measure how long the stages of a pipeline idle between two jobs, forward and reverse, with and without
    overlap."""
    measure = _module("pipeline_switch").measure_pipeline_switch
    seen = [asdict(one) for one in measure(2 if is_quick else _STAGES, switches=2 if is_quick else 10)]
    rows = [
        (
            f"{one['second']} after forward",
            "overlapped" if one["overlap"] else "one by one",
            one["mean_idle_s"],
        )
        for one in seen
    ]
    chart = Bars("order", "switch", "mean_idle_s", None, "mean idle time of a stage, s")
    return Result((), (Table("pipeline_switches", ("order", "switch", "mean_idle_s"), rows, chart),))
