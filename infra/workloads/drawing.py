"""Jobs drawn for a cell, by the policies of its zones."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from infra.tools import tools_of
from infra.workloads.timed import TimedEvent, WorkloadError
from schemas.base import Event
from schemas.cells import CellConfigured, Zone
from schemas.codec import describe
from schemas.installed import KINDS


class DrawingOptions(BaseModel):
    """Options for drawn jobs of one policy; numbers may be given as text."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


Options = TypeVar("Options", bound=DrawingOptions)


@dataclass(frozen=True)
class Drawing:
    """Description of a drawn workload, which gives the same jobs on any machine."""

    cell: CellConfigured
    zones: tuple[Zone, ...]
    """Zones of the cell that jobs are drawn for, one at least."""
    seed: int
    trace: Path | None = None
    """File of real jobs, from which as many properties as possible come; None generates everything."""
    jobs: int | None = None
    """Number of jobs; None leaves it to the policy."""
    span_s: float | None = None
    """Time from the cell's epoch on in which jobs are submitted; None leaves it to the policy."""
    options: Mapping[str, str] | None = None
    """Values by the names of the policy's `DrawingOptions`."""
    note: Callable[[str], None] = lambda _line: None
    """Takes a line about how the jobs of the trace were changed."""

    def options_as(self, model: type[Options]) -> Options:
        """Return the options of the jobs in the policy's own model.

        Raises:
            WorkloadError: the policy has no such option, or a value is invalid.
        """
        try:
            return model.model_validate(dict(self.options or {}))
        except ValidationError as error:
            known = ", ".join(model.model_fields)
            kind = self.zones[0].policy.kind
            raise WorkloadError(
                f"drawing jobs for policy {kind}: {describe(error)}; its options are {known}"
            ) from None


def draw_jobs(
    cell: CellConfigured,
    seed: int,
    trace: Path | None = None,
    jobs: int | None = None,
    span_s: float | None = None,
    options: Mapping[str, str] | None = None,
    note: Callable[[str], None] = lambda _line: None,
) -> list[TimedEvent[Event]]:
    """Draw the jobs of all zones that admit any, and the other events that their policy draws with them.

    `note` takes a line about how the jobs of the trace were changed.

    Raises:
        WorkloadError: no jobs can be drawn for a zone, or not together with those of another.
        TraceError: the trace is invalid.
    """
    zones = tuple(zone for zone in cell.zones if KINDS[zone.policy.kind].workloads)
    drawn_by = {zone.id: tools_of(zone.policy.kind).drawn for zone in zones}
    for zone in zones:
        if drawn_by[zone.id] is None:
            raise WorkloadError(
                f"zone {zone.id} is under policy {zone.policy.kind}, for which no jobs are drawn: give "
                "--job-file, or --jobs 0"
            )
    references = dict.fromkeys(reference for reference in drawn_by.values() if reference is not None)
    if not references:
        raise WorkloadError(f"no zone of cell {cell.cell} takes jobs: give --jobs 0")
    if len(references) > 1:
        kinds = ", ".join(dict.fromkeys(zone.policy.kind for zone in zones))
        raise WorkloadError(
            f"cell {cell.cell} has zones under policies {kinds}, whose jobs are not drawn together: give "
            "--job-file"
        )
    (reference,) = references
    drawn: list[TimedEvent[Event]] = resolve_name(reference)(
        Drawing(cell, zones, seed, trace, jobs, span_s, options, note)
    )
    return drawn
