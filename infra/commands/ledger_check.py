"""What a command checks of a ledger file before it says anything that rests on it."""

from collections.abc import Iterable
from pathlib import Path

from infra.commands.replay import DECISIONS_FILE, fault_of
from infra.errors import CommandError
from streams.heads import Head, KeptHead
from streams.replay_files import fold_file, verify_files


def check_ledger(ledger: Path, cell: str, kept: Iterable[KeptHead]) -> tuple[Head, list[str]]:
    """Fold a cell's ledger again, and verify it where its decisions lie beside it.

    Args:
        kept: heads that it must lead to.

    Returns:
        its head, and a line if nothing but that head shows whether the ledger is whole and unaltered.

    Raises:
        CommandError: the decisions are not those that it demands, or it does not lead to a kept head.
        ReplayError: a line of it is no event in canonical form, or out of order.
    """
    decisions = ledger.with_name(DECISIONS_FILE)
    if decisions.exists():
        verdict = verify_files(ledger, decisions, cell, kept)
        if not verdict.ok:
            raise CommandError(fault_of(verdict))
        return verdict.heads[cell], []
    heads, faults = fold_file(ledger, cell, kept)
    if faults:
        raise CommandError(faults[0])
    return heads[cell], [f"{decisions} is not there: nothing shows that the ledger is whole"]
