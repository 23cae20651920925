"""Changes of a running cell: nodes that join, leave, or move between zones, and zones that are reconfigured.

A node leaves a zone only when the zone no longer needs it, so no change takes a running node from a job.
"""

from collections.abc import Iterable, Mapping

from schemas.cells import Node, Zone
from schemas.changes import (
    CellChange,
    NodeCordoned,
    NodeLent,
    NodeRegistered,
    NodeRetired,
    NodeReturned,
    NodeUncordoned,
    ZoneConfigured,
)
from schemas.decisions import EventIgnored, IgnoredReason, NodeMoved, ZoneAccepted
from schemas.facts import Fact
from schemas.installed import KINDS
from schemas.registry import runners_of
from streams.cell.layout import InvalidLayoutError, Layout
from streams.cell.node_record import LeavingReason, NodeRecord
from streams.cell.nodes import RETIRED, Departure, NodeChange, NodePool, Step, commands_nodes
from streams.cell.outcomes import Outcomes
from streams.cell.zone_registry import Zones

Departures = Mapping[str, Departure]
"""By node."""


class RefusedError(Exception):
    """The reason that an event changes nothing."""

    def __init__(self, reason: IgnoredReason, /, **facts: Fact) -> None:
        super().__init__(reason, facts)
        self.reason: IgnoredReason = reason
        self.facts = facts


class Changes:
    """Changes of the nodes and zones of one cell."""

    def __init__(self, nodes: NodePool, zones: Zones, outcomes: Outcomes) -> None:
        self._nodes = nodes
        self._zones = zones
        self._outcomes = outcomes
        self._tried: Layout | None = None
        self._room_after: dict[tuple[tuple[str, str | None], ...], int | None] = {}
        """Room for live jobs in the snapshot if nodes left `_tried` for these zones; None if they cannot
        leave. A cache, since nodes may wait long: it follows from the state."""

    def apply(self, event: CellChange) -> None:
        """Apply a change by an operator, or ignore it with the reason."""
        try:
            self._change(event)
        except RefusedError as refused:
            self._outcomes.add(EventIgnored(reason=refused.reason, facts=refused.facts))
        except InvalidLayoutError as error:
            self._outcomes.add(EventIgnored(reason="invalid_configuration", facts=error.facts))

    def settle(self) -> None:
        """Move the nodes that are to leave their zones and that no job needs any more."""
        while (free := self._free_to_go()) is not None:
            departures, layout = free
            for node in departures:
                self._nodes.leave(node)
            self.move(departures, layout)

    def _free_to_go(self) -> tuple[Departures, Layout] | None:
        """Return nodes that may leave now, and the layout after that; a move may free others.

        They are all nodes that their zones can spare, or else the first that may leave without the others.
        """
        if not self._nodes.leaving:
            return None
        if self._tried is not self._layout:
            self._tried = self._layout
            self._room_after.clear()
        by_zone: dict[str, list[str]] = {}
        for node in self._nodes.leaving:
            by_zone.setdefault(self._layout.zone_of[node], []).append(node)
        spared = {
            node for zone, nodes in by_zone.items() for node in self._zones.guarded[zone].free_to_leave(nodes)
        }
        free = {node: departure for node, departure in self._nodes.leaving.items() if node in spared}
        one_by_one = ({node: departure} for node, departure in free.items()) if len(free) > 1 else ()
        for departures in (free, *one_by_one) if free else ():
            layout = self._layout_with_room(departures)
            if layout is not None:
                return departures, layout
        return None

    def _layout_with_room(self, departures: Departures) -> Layout | None:
        """Return the layout after nodes have left, if it is valid and has room for the live jobs."""
        moves = tuple((node, departure.to_zone) for node, departure in departures.items())
        layout = None
        if moves not in self._room_after:
            layout = self._layout_if_they_left(dict(moves))
            self._room_after[moves] = None if layout is None else layout.present.live_jobs_bytes
        room_bytes = self._room_after[moves]
        if room_bytes is None or self._zones.live_bytes > room_bytes:
            return None
        return layout or self._layout.after(dict(moves))

    def _layout_if_they_left(self, moves: Mapping[str, str | None]) -> Layout | None:
        try:
            return self._layout.after(moves)
        except InvalidLayoutError:
            return None  # the zones have changed since: the nodes wait until it is valid again

    def carry_out(self, steps: Iterable[Step]) -> None:
        """Add decisions about nodes, and pass changes to their zones."""
        for step in steps:
            if isinstance(step, NodeChange):
                zone = self._layout.zone_of[step.node]
                self._zones.guarded[zone].nodes_changed(step)
            else:
                self._outcomes.add(step)

    def layout_for(self, destinations: Mapping[str, str]) -> Layout | None:
        """Return the layout with these nodes in other zones; None without any.

        Raises:
            RefusedError: it is not valid, or a zone that nodes come to could not keep its promises.
        """
        if not destinations:
            return None
        try:
            layout = self._layout.after(destinations)
        except InvalidLayoutError as error:
            raise RefusedError("invalid_configuration", **error.facts) from None
        self._refuse_broken_promises(layout, dict.fromkeys(destinations.values()))
        return layout

    @property
    def _layout(self) -> Layout:
        return self._nodes.layout

    def _change(self, event: CellChange) -> None:
        """Change the cell. Every fault is found before the first decision.

        Raises:
            RefusedError, InvalidLayoutError: nothing has changed.
        """
        match event:
            case ZoneConfigured():
                self._configure(event)
            case NodeRegistered():
                self._register(event)
            case NodeRetired():
                self._retire(event.node)
            case NodeLent():
                self._lend(event)
            case NodeReturned():
                self._return(event)
            case NodeCordoned():
                if not self._record(event.node).allows("cordoned"):
                    raise RefusedError("nothing_changes", case="cordoned", node=event.node)
                self.carry_out(self._nodes.cordon(event.node))
            case NodeUncordoned():
                if not self._record(event.node).allows("uncordoned"):
                    raise RefusedError("nothing_changes", case="not_cordoned", node=event.node)
                self.carry_out(self._nodes.uncordon(event.node))

    def _configure(self, event: ZoneConfigured) -> None:
        zone, before = event.zone, self._layout
        layout = before.with_zone(event)
        is_new = zone.id not in before.zones
        policy = zone.policy.kind if is_new else before.zones[zone.id].policy.kind
        if policy not in (zone.policy.kind, *KINDS[zone.policy.kind].follows):
            raise RefusedError("breaks_a_promise", case="other_policy", zone=zone.id, policy=policy)
        lent = next((server for server, loan in self._nodes.loans.items() if loan.owner == zone.id), None)
        if zone.lending is None and lent is not None:
            raise RefusedError("breaks_a_promise", case="servers_on_loan", zone=zone.id, server=lent)
        listed = {node.id for node in zone.nodes}
        owned = {node for node, owner in before.owner_of.items() if owner == zone.id}
        retiring = {node for node, departure in self._nodes.leaving.items() if departure == RETIRED}
        given_up = sorted(owned - listed - retiring)
        if layout.owned == before.owned and not given_up and not listed & retiring:
            raise RefusedError("nothing_changes", case="zone_is_so", zone=zone.id)
        kept = listed & retiring
        departures = {node: to for node, to in self._destinations.items() if node not in kept}
        self._refuse_stranded(layout, {**departures, **dict.fromkeys(given_up)})
        self._refuse_broken_promises(layout, layout.zones.keys())
        joined = sorted(layout.zone_of.keys() - before.zone_of.keys())
        self._outcomes.add(ZoneAccepted(zone=zone.id, reason="added" if is_new else "changed"))
        self._arrange(layout)
        for node in joined:
            self._join(node)
        for node in sorted(kept):
            self.carry_out(self._nodes.keep(node, "registered"))
        if not is_new and _asks_more(before.zones[zone.id], layout.zones[zone.id]):
            for serving in layout.zones[zone.id].nodes:
                self.carry_out(self._nodes.await_announcement(serving.id))
        for node in given_up:
            self.carry_out(self._nodes.send_off(node, "retired"))

    def _register(self, event: NodeRegistered) -> None:
        self._refuse_unknown_zone(event.zone)
        owner = self._layout.owner_of.get(event.node)
        if owner is not None:
            if self._is_retiring(event, owner):
                self.carry_out(self._nodes.keep(event.node, "registered"))
                return
            raise RefusedError("node_already_registered", node=event.node, zone=owner)
        layout = self._layout.with_node(event)
        if self._nodes.loans:
            self._refuse_stranded(layout, self._destinations)
        self._refuse_broken_promises(layout, [event.zone])
        self._arrange(layout)
        self._join(event.node)

    def _is_retiring(self, event: NodeRegistered, owner: str) -> bool:
        """Return whether a node that is to leave the cell is registered again unchanged."""
        held = Node(id=event.node, gpu_type=event.gpu_type, tariff=event.tariff)
        zones = self._layout.owned.zones
        return (
            self._nodes.leaving.get(event.node) == RETIRED
            and owner == event.zone
            and any(held in zone.nodes for zone in zones if zone.id == owner)
        )

    def _retire(self, node: str) -> None:
        if not self._record(node).allows("retired"):
            raise RefusedError("nothing_changes", case="leaving_the_cell", node=node)
        self._layout_after(node, None)
        self.carry_out(self._nodes.send_off(node, "retired"))

    def _lend(self, event: NodeLent) -> None:
        node, layout = self._staying(event.node), self._layout
        self._refuse_unknown_zone(event.zone)
        if layout.owner_of[node] == event.zone:
            raise RefusedError("nothing_changes", case="own_node", zone=event.zone, node=node)
        if not self._record(node).allows("lent"):
            raise RefusedError("node_already_lent", node=node, zone=layout.zone_of[node])
        self._send_off(node, "lent", event.zone)

    def _return(self, event: NodeReturned) -> None:
        node, layout = event.node, self._layout
        if self._record(node).membership == "lending":
            self.carry_out(self._nodes.keep(node, "returned"))
        elif node not in layout.lent:
            raise RefusedError("node_not_lent", node=node, zone=layout.zone_of[node])
        else:
            self._send_off(self._staying(node), "returned", layout.owner_of[node])

    def _send_off(self, node: str, reason: LeavingReason, to_zone: str) -> None:
        """Send a node to another zone, now or as soon as its own can spare it."""
        self._refuse_broken_promises(self._layout_after(node, to_zone), [to_zone])
        self.carry_out(self._nodes.send_off(node, reason, to_zone))

    def _layout_after(self, node: str, to_zone: str | None) -> Layout:
        """Return the layout with the node in its new zone.

        Raises:
            InvalidLayoutError: it cannot go there, or not after all others that are to leave.
        """
        layout = self._layout.after({node: to_zone})
        if self._destinations.keys() - {node}:
            self._refuse_stranded(self._layout, {**self._destinations, node: to_zone})
        return layout

    @property
    def _destinations(self) -> dict[str, str | None]:
        """Destinations of the nodes that are to leave, None for the outside. A server on loan may be
        reclaimed at any time."""
        return {
            **{server: loan.owner for server, loan in self._nodes.loans.items()},
            **{node: departure.to_zone for node, departure in self._nodes.leaving.items()},
        }

    def _refuse_stranded(self, layout: Layout, destinations: Mapping[str, str | None]) -> None:
        """Refuse a change after which a leaving node could not leave, such as the last node of a zone.

        Raises:
            InvalidLayoutError: unless that holds before the change, too.
        """
        try:
            layout.after(destinations)
        except InvalidLayoutError:
            if self._all_can_leave():
                raise

    def _all_can_leave(self) -> bool:
        try:
            self._layout.after(self._destinations)
        except InvalidLayoutError:
            return False
        return True

    def move(self, departures: Departures, layout: Layout) -> None:
        """Move nodes that no job needs to their places in `layout`."""
        before = self._layout
        self._arrange(layout)
        for node, departure in departures.items():
            from_zone, to_zone = before.zone_of[node], departure.to_zone
            self._outcomes.add(
                NodeMoved(node=node, from_zone=from_zone, to_zone=to_zone, reason=departure.reason)
            )
            if to_zone is None:
                continue
            if not commands_nodes(layout.zones[to_zone]):
                self.carry_out(self._nodes.assume_up(node, departure.reason))
            self.carry_out(self._nodes.initial_changes(node))
            if _asks_more(before.zones[from_zone], layout.zones[to_zone]):
                self.carry_out(self._nodes.await_announcement(node))

    def _join(self, node: str) -> None:
        zone = self._layout.zone_of[node]
        self._outcomes.add(NodeMoved(node=node, from_zone=None, to_zone=zone, reason="registered"))
        if commands_nodes(self._layout.zones[zone]):
            self.carry_out(self._nodes.await_announcement(node))

    def _arrange(self, layout: Layout) -> None:
        self._nodes.arrange(layout)
        self._zones.arrange(layout)

    def _record(self, node: str) -> NodeRecord:
        if self._nodes.zone_of(node) is None:
            raise RefusedError("unknown_node", node=node)
        return self._nodes.record(node)

    def _staying(self, node: str) -> str:
        if self._record(node).leaves is not None:
            raise RefusedError("node_leaving", node=node, zone=self._layout.zone_of[node])
        return node

    def _refuse_unknown_zone(self, zone: str) -> None:
        if zone not in self._layout.zones:
            raise RefusedError("unknown_zone", zone=zone)

    def _refuse_broken_promises(self, layout: Layout, zones: Iterable[str]) -> None:
        promise = self._zones.broken_promise(layout, zones)
        if promise is not None:
            raise RefusedError("breaks_a_promise", **promise)


def _asks_more(before: Zone, after: Zone) -> bool:
    """Return whether a node that is fit for a zone may be unfit for another, or for its new settings."""
    needed, held = runners_of(after.policy.kind), runners_of(before.policy.kind)
    asks_other_model = after.policy.shares_base_model and (
        not before.policy.shares_base_model or before.base_model != after.base_model
    )
    return asks_other_model or not needed <= held
