"""How a benchmark is asked for."""

from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console


@dataclass(frozen=True)
class Conditions:
    """What the command line says of a run."""

    quick: bool
    seed: int
    folder: Path
    """Where rows are kept, and artefacts written."""
    jobs: int
    """Processes beside each other, where a benchmark has runs that may be."""
    traces: Path
    """Folder of the benchmark's own real traces."""
    trace_files: tuple[Path, ...]
    """Further real traces."""
    console: Console = field(repr=False)
    """For progress."""
