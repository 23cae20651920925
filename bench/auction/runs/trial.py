"""The inputs of a run, and the results kept of it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from pydantic import ConfigDict, FiniteFloat

from bench.workloads.arrivals import TraceArrivals
from bench.workloads.paper import PaperSetting

_BASE = PaperSetting()


@dataclass(frozen=True)
class Trial:
    """One measurement to make."""

    setting: PaperSetting
    seed: int
    contender: str
    """A name in `measures.MEASURES`."""
    alone: bool = False
    """Whether nothing else of the benchmark may run beside it: its times are wanted."""

    @property
    def setting_name(self) -> str:
        """What rows call its setting."""
        return setting_name(self.setting)

    def __str__(self) -> str:
        return f"{self.setting_name}, seed {self.seed}, {self.contender}"


@dataclass(frozen=True)
class Row:
    """A trial's outcome."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    setting: str
    seed: int
    contender: str
    alone: bool
    sources: str
    """Digest of all that decides: see `sources.py`."""
    values: Mapping[str, FiniteFloat]
    """By the names that the trial's measure gives them."""

    @property
    def key(self) -> tuple[str, int, str, str]:
        """What it is the outcome of."""
        return (self.setting, self.seed, self.contender, self.sources)


def setting_name(setting: PaperSetting) -> str:
    """How a setting differs from the base, in a stable order: it identifies rows and tells them to people."""
    differing = (
        f"{field.name}={_text(getattr(setting, field.name))}"
        for field in fields(setting)
        if getattr(setting, field.name) != getattr(_BASE, field.name)
    )
    return " ".join(differing) or "base"


def _text(value: Any) -> str:
    # A trace is known by its file's name and content, wherever that lies.
    if isinstance(value, TraceArrivals):
        return f"{value.path.name}/{value.jobs}/{value.digest}"
    return str(value).replace(" ", "")
