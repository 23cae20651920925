"""Schemes of allocation, and functions that choose the servers to return, by setting."""

from collections.abc import Callable, Mapping

from schemas.elastic.settings import ElasticPolicy, ReclaimingName, SchemeName
from solvers.elastic.demand import Scheme
from solvers.elastic.heuristics import Afs, FirstInFirstOut, Gandiva, Opportunistic
from solvers.elastic.pollux import Pollux
from solvers.elastic.reclaiming import Choice, least_preemption_cost, random_choice, smallest_count
from solvers.elastic.two_phase import TwoPhase

_SCHEMES: Mapping[SchemeName, Callable[[ElasticPolicy], Scheme]] = {
    "lyra": lambda policy: TwoPhase(policy.scaling_pause_s),
    "fifo": lambda _policy: FirstInFirstOut(),
    "opportunistic": lambda _policy: Opportunistic(),
    "gandiva": lambda _policy: Gandiva(),
    "afs": lambda _policy: Afs(),
    "pollux": lambda policy: Pollux(policy.seed),
}
_CHOICES: Mapping[ReclaimingName, Callable[[ElasticPolicy], Choice]] = {
    "preemption_cost": lambda _policy: least_preemption_cost,
    "smallest_count": lambda _policy: smallest_count,
    "random": lambda policy: random_choice(policy.seed),
}


def scheme_of(policy: ElasticPolicy) -> Scheme:
    """Return the scheme that allocates workers under some settings."""
    return _SCHEMES[policy.scheme](policy)


def choice_of(policy: ElasticPolicy) -> Choice:
    """Return the choice of servers to return under some settings."""
    return _CHOICES[policy.reclaiming](policy)
