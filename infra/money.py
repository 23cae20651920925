"""Money as people read it."""

_MICROS_PER_UNIT = 1_000_000


def units(micros: float | None) -> str:
    """An amount in units of money, to four decimals; a dash for none."""
    return "–" if micros is None else f"{micros / _MICROS_PER_UNIT:,.4f}"
