"""The decision about an offer: the borrower of each server, or the reason against a loan."""

from collections.abc import Mapping
from dataclasses import dataclass

from schemas.cells import Lending, Zone
from schemas.facts import NO_FACTS, Fact, Facts
from schemas.loans import OfferRefusal, RefusedServers
from streams.cell.nodes import NodePool
from streams.cell.shares import least_kept, next_borrower
from streams.policies.policy import ZonePolicy


@dataclass(frozen=True)
class Load:
    """The last report of a zone about its servers."""

    time_s: float
    load: float
    """Fraction of its servers that the zone needs."""
    serving: tuple[str, ...]
    """Servers that serve requests."""


class Refusals:
    """Servers of one offer that are not lent, by the reason."""

    def __init__(self) -> None:
        self._servers: dict[OfferRefusal, list[str]] = {}
        self._facts: dict[OfferRefusal, Facts] = {}

    def add(self, server: str, reason: OfferRefusal, facts: Mapping[str, Fact] = NO_FACTS) -> None:
        """Add a server. The facts of the first server stand for all with this reason."""
        self._servers.setdefault(reason, []).append(server)
        self._facts.setdefault(reason, dict(facts))

    def records(self) -> tuple[RefusedServers, ...]:
        """Return the refusals for the answer."""
        return tuple(
            RefusedServers(reason=reason, servers=tuple(servers), facts=self._facts[reason])
            for reason, servers in self._servers.items()
        )


def share_out(
    servers: tuple[str, ...],
    lender: Zone,
    lending: Lending,
    load: Load | None,
    nodes: NodePool,
    policies: Mapping[str, ZonePolicy],
) -> tuple[dict[str, str], Refusals]:
    """Return the borrower of each server that can be lent, and the refusals of the others.

    Args:
        servers: offered, in this order.
        lender: with all nodes that it owns.
        load: None without a recent report; then no server is lent.
        nodes: of the cell.
        policies: by zone.
    """
    refusals, lent = Refusals(), dict[str, str]()
    layout = nodes.layout
    gpu_type_of = {node.id: node.gpu_type for node in lender.nodes}
    at_home = sum(layout.zone_of[node] == lender.id and node not in nodes.leaving for node in gpu_type_of)
    spare = 0 if load is None else at_home - least_kept(lending, len(gpu_type_of), load.load)
    serving = frozenset(() if load is None else load.serving)
    held = dict.fromkeys((one.zone for one in lending.borrowers), 0)
    for one, loan in nodes.loans.items():
        if loan.owner == lender.id and loan.borrower in held and one not in nodes.leaving:
            held[loan.borrower] += 1
    types_of = {one.zone: {gpu.name for gpu in layout.zones[one.zone].gpu_types} for one in lending.borrowers}
    unfit = {server: _unfit_to_lend(server, lender.id, nodes) for server in servers}
    fit = [server for server, refusal in unfit.items() if refusal is None]
    unneeded = set(policies[lender.id].free_to_leave(fit))
    for server in servers:
        refusal = unfit[server]
        if refusal is None and server not in unneeded:
            refusal = "occupied"
        if refusal is None and server in serving:
            refusal = "serving"
        if refusal is not None:
            refusals.add(server, refusal)
            continue
        gpu_type = gpu_type_of[server]
        borrower = next_borrower(lending, held, [zone for zone in held if gpu_type in types_of[zone]])
        if borrower is None:
            refusals.add(server, "no_fitting_borrower", {"gpu_type": gpu_type})
        elif load is None:
            refusals.add(server, "no_load_report", {"load_valid_s": lending.load_valid_s})
        elif len(lent) >= spare:
            refusals.add(
                server,
                "inside_headroom",
                {
                    "left_servers": at_home - len(lent),
                    "own_servers": len(gpu_type_of),
                    "load": load.load,
                    "headroom": lending.headroom,
                    "needed_servers": at_home - spare,
                },
            )
        else:
            lent[server] = borrower
            held[borrower] += 1
    return lent, refusals


def _unfit_to_lend(server: str, lender: str, nodes: NodePool) -> OfferRefusal | None:
    """Return why a zone cannot lend a server at all; None if it can."""
    owner = nodes.layout.owner_of.get(server)
    if owner is None:
        return "unknown_server"
    if owner != lender:
        return "not_owned"
    if server in nodes.layout.lent:
        return "already_lent"
    match nodes.status_of(server):
        case "down" | "leaving" | "cordoned" as status:
            return status
    return None
