"""Shares of a lender's servers: those that it keeps, and those that borrowers get and return."""

import math
from collections.abc import Iterable, Mapping

from schemas.cells import Lending

_ROUNDING = 1e-9
"""Tolerance for a product of a fraction and a number of servers that should be a whole number."""


def least_kept(lending: Lending, owned: int, load: float) -> int:
    """Return the number of servers that a zone must not lend: those for its load and its headroom, each
    rounded up to whole servers, and at least one (thesis, section 3.7.1).

    Args:
        owned: number of its servers.
        load: fraction of them that it needs now.
    """
    needed, headroom = (math.ceil(part * owned - _ROUNDING) for part in (load, lending.headroom))
    return max(needed + headroom, 1)


def next_borrower(lending: Lending, loans: Mapping[str, int], fitting: Iterable[str]) -> str | None:
    """Return the borrower of the next server: the fitting one with the fewest loans per weight, ties in the
    order of the configuration; None if none fits.

    Args:
        loans: number of loans of this lender by borrower.
    """
    among = set(fitting)
    candidates = [one for one in lending.borrowers if one.zone in among]
    return min(candidates, key=lambda one: loans.get(one.zone, 0) / one.weight).zone if candidates else None


def returns(lending: Lending, loans: Mapping[str, int], count: int) -> dict[str, int]:
    """Return the number of servers that each borrower returns: one at a time, by the borrower with the most
    loans per weight then. Ties in the reverse order of the configuration; former borrowers return first.

    Args:
        loans: number of loans by borrower, at least `count` together.

    Returns:
        number of servers by borrower, in the order of their first server.
    """
    weights = {one.zone: one.weight for one in lending.borrowers}
    former = sorted(loans.keys() - weights.keys())
    left, given = dict(loans), dict[str, int]()

    def loans_per_weight(zone: str) -> float:
        return left[zone] / weights[zone] if zone in weights else math.inf if left[zone] else 0.0

    order = [zone for zone in (*former, *reversed(weights)) if zone in left]
    for _ in range(count):
        giver = max(order, key=loans_per_weight)
        left[giver] -= 1
        given[giver] = given.get(giver, 0) + 1
    return given
