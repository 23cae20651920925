"""Cells of a log: their first configurations, their present states, and the configuration of new ones."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from infra.errors import CommandError
from infra.figures.nodes import Nodes
from infra.log.answers import Answers, Refusal
from infra.log.publisher import EventPublisher
from infra.log.reader import LogReader, decisions_in, events_in
from infra.log.target import Target
from infra.views.sentences import sentence
from schemas.base import Event
from schemas.cells import CellConfigured
from schemas.changes import NodeRegistered, ZoneConfigured
from schemas.codec import Envelope
from schemas.decisions import CellAccepted, EventIgnored, NodeMoved, ZoneAccepted
from schemas.topics import CELLS, DECISIONS, LEDGER
from streams.worker.cells_file import CellsFile

_SOURCE = "millrace/up"
_OVERTAKEN = "cell_already_configured"
"""Reason with which a second configuration is ignored."""


@dataclass(frozen=True)
class PresentCell:
    """A cell after all changes that it has accepted."""

    configuration: CellConfigured
    """First configuration: its slots and its timeout hold."""
    nodes: Nodes
    """Present nodes and zones."""


def first_layout(first: CellConfigured) -> PresentCell:
    """Return the state of a cell under its first configuration."""
    cell = PresentCell(first, Nodes())
    cell.nodes.configure(first)
    return cell


def ledger_configurations(target: Target, cells: set[str]) -> dict[str, CellConfigured]:
    """Return the first configurations of those of `cells` that have one."""
    found: dict[str, CellConfigured] = {}
    for envelope in _events(target, CellConfigured):
        if isinstance(envelope.event, CellConfigured) and envelope.event.cell in cells:
            found.setdefault(envelope.event.cell, envelope.event)
            if found.keys() == cells:
                break
    return found


def present_cells(target: Target) -> dict[str, PresentCell]:
    """Return every cell of a log, by name.

    Raises:
        ReadError: the log cannot be read.
    """
    # Decisions are read first, so the events that are read next include all of their causes.
    # A killed worker leaves duplicates of decisions, so they are kept by id.
    with LogReader(target, [target.topic(DECISIONS)], "beginning") as reader:
        changes_of_layout = decisions_in(reader.to_end(), NodeMoved, ZoneAccepted)
        decided = {decision.id: decision for decision in changes_of_layout}
    cells: dict[str, PresentCell] = {}
    for envelope in _events(target, CellConfigured, ZoneConfigured, NodeRegistered):
        match envelope.event:
            case CellConfigured() as first:
                cells.setdefault(first.cell, first_layout(first))
            case ZoneConfigured() | NodeRegistered() as change if change.cell in cells:
                cells[change.cell].nodes.fold_event(envelope)
    for decision in decided.values():
        if decision.cell in cells:  # its policies are installed here
            cells[decision.cell].nodes.fold_decision(decision)
    return cells


def _events(target: Target, *types: type[Event]) -> Iterator[Envelope]:
    with LogReader(target, [target.topic(LEDGER)], "beginning") as reader:
        yield from events_in(reader.to_end(), *types)


@dataclass(frozen=True)
class LedgerCell:
    """Configuration of a cell in its ledger."""

    configuration: CellConfigured
    is_new: bool
    """Whether the ledger had no configuration before."""
    differs: bool
    """Whether the file has another configuration; the ledger's holds."""


def configure_cells(
    target: Target,
    cells_file: CellsFile,
    now_s: float,
    timeout_s: float,
    check_running: Callable[[], None],
) -> list[LedgerCell]:
    """Publish the configuration of each new cell of a file, and return when all are accepted.

    An earlier start may have published another configuration and ended before it was accepted. If a cell
    accepts that configuration first, it applies.

    `check_running` is called repeatedly during the wait for a worker; its errors end the wait.

    Raises:
        CommandError: a configuration is rejected, or not accepted in time.
    """
    cells = [cells_file.cell(name, now_s) for name in cells_file.names]
    held = ledger_configurations(target, {cell.cell for cell in cells})
    new = [cell for cell in cells if cell.cell not in held]
    overtaken = _publish(target, new, timeout_s, check_running) if new else set()
    if overtaken:
        held |= ledger_configurations(target, overtaken)
    configured = []
    for cell in cells:
        present = held.get(cell.cell, cell)
        # The file may leave the epoch to the first start, and leaves the version of the rules to the workers.
        file_cell = cells_file.cell(cell.cell, present.epoch_s).model_copy(update={"rules": present.rules})
        configured.append(LedgerCell(present, cell.cell not in held, file_cell != present))
    return configured


def _publish(
    target: Target, cells: list[CellConfigured], timeout_s: float, check_running: Callable[[], None]
) -> set[str]:
    """Send configurations and wait until each cell has one.

    Returns:
        The cells that had accepted another configuration before.
    """
    overtaken = set()
    with Answers(target, CELLS) as answers:
        with EventPublisher(target, _SOURCE) as publisher:
            waiting = {publisher.publish(cell).id: cell for cell in cells}
        for event_id, answer in answers.to(dict(waiting), timeout_s, check_running):
            cell = waiting.pop(event_id).cell
            if isinstance(answer, Refusal):
                raise CommandError(f"cell {cell} is refused: {answer.reason}")
            if isinstance(answer.outcome, EventIgnored) and answer.outcome.reason == _OVERTAKEN:
                overtaken.add(cell)
            elif not isinstance(answer.outcome, CellAccepted):
                raise CommandError(f"cell {cell} is not accepted: {sentence(answer.outcome)}")
    if waiting:
        cells_left = ", ".join(sorted(cell.cell for cell in waiting.values()))
        raise CommandError(f"no worker has accepted {cells_left} within {timeout_s:g} s")
    return overtaken
