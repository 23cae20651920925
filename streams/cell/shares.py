"""How many servers a lender must keep, and which borrowers get and give back."""

import math
from collections.abc import Iterable, Mapping

from schemas.cells import Lending

_ROUNDING = 1e-9
"""A product of a fraction and a number of servers that is so little above a whole number is that number."""


def least_kept(lending: Lending, owned: int, load: float) -> int:
    """How many of its servers a zone must not lend: what its load needs and its headroom, each rounded up to
    whole servers, and one at least (thesis, section 3.7.1).

    Args:
        owned: its servers.
        load: the fraction of them that it needs now.
    """
    needed, headroom = (math.ceil(part * owned - _ROUNDING) for part in (load, lending.headroom))
    return max(needed + headroom, 1)


def next_borrower(lending: Lending, loans: Mapping[str, int], fitting: Iterable[str]) -> str | None:
    """Who gets the next server: of the fitting borrowers the one with the fewest loans per weight, ties in
    the order of the configuration. None where none fits.

    Args:
        loans: how many each borrower has of this lender.
    """
    among = set(fitting)
    candidates = [one for one in lending.borrowers if one.zone in among]
    return min(candidates, key=lambda one: loans.get(one.zone, 0) / one.weight).zone if candidates else None


def returns(lending: Lending, loans: Mapping[str, int], count: int) -> dict[str, int]:
    """How many servers each borrower gives back: one at a time, by whoever has the most loans per weight
    then. Ties in the reverse order of the configuration; who is no borrower any more gives first.

    Args:
        loans: how many each borrower has, `count` together at least.

    Returns:
        By borrower, in the order of their first server.
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
