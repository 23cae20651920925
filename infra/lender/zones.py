"""The zone that lends, as the log has it."""

from infra.deployment.cells import present_cells
from infra.errors import CommandError
from infra.log.target import Target
from schemas.cells import Zone


def lending_zone(target: Target, cell: str, zone: str) -> Zone:
    """A zone that lends, as it was last configured.

    Raises:
        CommandError: it is not there, or does not lend.
        ReadError: the log cannot be read.
    """
    cells = present_cells(target)
    if cell not in cells:
        raise CommandError(f"there is no cell {cell} (cells: {', '.join(sorted(cells)) or 'none'})")
    zones = cells[cell].zones
    if zone not in zones:
        raise CommandError(f"cell {cell} has no zone {zone}, it has {', '.join(sorted(zones))}")
    if zones[zone].lending is None:
        lending = ", ".join(sorted(name for name, one in zones.items() if one.lending)) or "none"
        raise CommandError(f"zone {zone} of cell {cell} has no `lending` (zones that have: {lending})")
    return zones[zone]
