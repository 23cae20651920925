"""Room of a snapshot, which no event sets: it follows from the sizes that a configuration allows."""

from streams.cell.state_machine import Cell


def limit_room(cell: Cell, limit_bytes: int) -> None:
    """Limit the live jobs of a cell to some bytes of a snapshot, until it is reconfigured."""
    cell.jobs.live_bytes.limit(limit_bytes)
