"""Configuration of cells: sends them to a worker, and waits until it has accepted them."""

from collections.abc import Callable
from dataclasses import dataclass

from infra.deployment.cells import ledger_configurations
from infra.errors import CommandError
from infra.log.answers import Answers, Refusal
from infra.log.publisher import EventPublisher
from infra.log.target import Target
from infra.views.sentences import sentence
from schemas.cells import CellConfigured
from schemas.decisions import CellAccepted, EventIgnored
from schemas.topics import CELLS
from streams.worker.cells_file import CellsFile

_SOURCE = "millrace/up"
_OVERTAKEN = "cell_already_configured"
"""Reason with which a second configuration is ignored."""


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
    check_alive: Callable[[], None],
) -> list[LedgerCell]:
    """Publish the configuration of each cell of a file that has none yet, and return when all are accepted.

    A cell may accept another configuration first, from an earlier start that ended before the acceptance.
    Then that one holds.

    `check_alive` is called repeatedly during the wait for a worker; its errors end the wait.

    Raises:
        CommandError: a configuration is rejected, or not accepted in time.
    """
    cells = [cells_file.cell(name, now_s) for name in cells_file.names]
    held = ledger_configurations(target, {cell.cell for cell in cells})
    new = [cell for cell in cells if cell.cell not in held]
    overtaken = _publish(target, new, timeout_s, check_alive) if new else set()
    if overtaken:
        held |= ledger_configurations(target, overtaken)
    configured = []
    for cell in cells:
        present = held.get(cell.cell, cell)
        # A file without an epoch leaves it to the first start.
        # It has no version of the rules either: the workers choose that.
        file_cell = cells_file.cell(cell.cell, present.epoch_s).model_copy(update={"rules": present.rules})
        configured.append(LedgerCell(present, cell.cell not in held, file_cell != present))
    return configured


def _publish(
    target: Target, cells: list[CellConfigured], timeout_s: float, check_alive: Callable[[], None]
) -> set[str]:
    """Send configurations and wait until each cell has one.

    Returns:
        The cells that had accepted another one before.
    """
    overtaken = set()
    with Answers(target, CELLS) as answers:
        with EventPublisher(target, _SOURCE) as publisher:
            waiting = {publisher.publish(cell).id: cell for cell in cells}
        for event_id, answer in answers.to(dict(waiting), timeout_s, check_alive):
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
