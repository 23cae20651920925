"""The zones of a cell, each under its policy."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pkgutil import resolve_name
from typing import Any

from schemas.base import Event, Outcome
from schemas.cells import Zone
from schemas.installed import check_reason
from schemas.jobs import JobQuoteRequested
from schemas.kind import PolicyKind, PolicySettings
from streams.cell.jobs import JobRegister
from streams.cell.layout import Layout
from streams.cell.live_bytes import LiveBytes
from streams.cell.nodes import NodePool
from streams.cell.outcomes import Outcomes, ZoneOutcomes
from streams.cell.places import FaultBoundary, note, placed
from streams.cell.profiles import ProfileStore, ZoneProfiles
from streams.policies.policy import BrokenPromise, ZoneContext, ZonePolicy

_DIGEST_BYTES = 8


class Zones:
    """Zones of a layout, by id."""

    def __init__(
        self,
        nodes: NodePool,
        jobs: JobRegister,
        live_bytes: LiveBytes,
        kinds: Mapping[str, PolicyKind],
        outcomes: Outcomes,
        profiles: ProfileStore,
    ) -> None:
        """Begin with empty zones.

        Args:
            nodes: of the cell.
            jobs: of the cell.
            live_bytes: bytes of live jobs in a snapshot.
            kinds: the policies that the rules of the cell have.
            outcomes: decisions on the present event.
            profiles: measured steps of kinds of jobs.
        """
        self._layout = nodes.layout
        self._nodes = nodes
        self._jobs = jobs
        self._kinds = kinds
        self._live = live_bytes
        self._outcomes = outcomes
        self._profiles = profiles
        self._time_s: float | None = None
        self.policies: dict[str, ZonePolicy] = {}
        self.guarded: dict[str, ZonePolicy] = {}
        """Policies by zone, wrapped so that each exception notes its place."""
        for zone in nodes.layout.zones.values():
            self._add(self._context(nodes.layout, zone))

    def kind_of(self, zone: str) -> PolicyKind | None:
        """Return the policy of a zone; None for a zone of another cell."""
        configured = self._layout.zones.get(zone)
        return None if configured is None else self._kinds[configured.policy.kind]

    def accepting(self, event: type[Event]) -> list[ZonePolicy]:
        """Return the zones whose policies have registered for an event."""
        kinds = {id: self._kinds[zone.policy.kind] for id, zone in self._layout.zones.items()}
        return [
            self.guarded[id] for id, kind in kinds.items() if any(event is one.event for one in kind.inputs)
        ]

    def quote(self, request: JobQuoteRequested) -> Outcome:
        """Return a zone's answer to a request for a quote.

        Raises:
            ValueError: its reason is one of another policy.
        """
        answer = self.guarded[request.zone].quote(request)
        check_reason(answer, self._kinds[self._layout.zones[request.zone].policy.kind])
        return answer

    def wake(self, time_s: float) -> None:
        """Pass the present time to all zones."""
        self._time_s = time_s
        for policy in self.guarded.values():
            policy.wake(time_s)

    def restore(self, states: Mapping[str, dict[str, Any]], time_s: float | None) -> None:
        """Set the states of equally configured zones; the register of jobs is restored before."""
        self._time_s = time_s
        for id, policy in self.policies.items():
            policy.restore(states[id])

    def describe(self) -> dict[str, dict[str, Any]]:
        """Describe each zone for an operator: its policy, a digest of its settings, and its state."""
        return {
            id: {
                "policy": zone.policy.kind,
                "settings_digest": _digest(zone.policy),
                **self.policies[id].describe(),
            }
            for id, zone in self._layout.zones.items()
        }

    @property
    def live_bytes(self) -> int:
        """Bytes of the live jobs in a snapshot."""
        return self._live.total

    def broken_promise(self, layout: Layout, ids: Iterable[str]) -> BrokenPromise | None:
        """Return a promise to jobs that these zones could not keep in another layout. All nodes that their
        jobs need must be present in that layout."""
        if self._live.total > layout.present.live_jobs_bytes:
            return {
                "case": "live_jobs",
                "held_bytes": self._live.total,
                "left_bytes": layout.present.live_jobs_bytes,
            }
        for id in ids:
            before, after = self._layout.zones.get(id), layout.zones[id]
            if before is not None and before != after:
                promise = self._broken_promise_of(before, self._context(layout, after))
                if promise is not None:
                    return {"zone": id, **promise}
        return None

    def _broken_promise_of(self, before: Zone, context: ZoneContext) -> BrokenPromise | None:
        id, after = before.id, context.zone
        job = next((job.job_id for job in self._jobs.live.values() if job.zone == id), None)
        if after.policy.shares_base_model and before.base_model != after.base_model and job is not None:
            return {"case": "other_base_model", "base_model": before.base_model, "job_id": job}
        return self.guarded[id].broken_promise(context)

    def arrange(self, layout: Layout) -> None:
        """Configure the zones that have changed, and add the new ones."""
        changed = list(self._changed(layout))
        added = [zone for zone in layout.zones.values() if zone.id not in self.policies]
        self._layout = layout
        self._live.limit(layout.present.live_jobs_bytes)
        for context in changed:
            self.guarded[context.zone.id].reconfigured(context)
        for zone in added:
            self._add(self._context(layout, zone))
            if self._time_s is not None:
                self.guarded[zone.id].wake(self._time_s)

    def _changed(self, layout: Layout) -> Iterator[ZoneContext]:
        """Yield the contexts of zones that differ in another layout."""
        before = self._layout
        same_tariffs = before.present.tariffs == layout.present.tariffs
        for id in self.policies:
            if not same_tariffs or before.zones[id] != layout.zones[id]:
                yield self._context(layout, layout.zones[id])

    def _context(self, layout: Layout, zone: Zone) -> ZoneContext:
        return ZoneContext(
            layout.present,
            zone,
            self._jobs.live,
            self._live,
            self._nodes.loans,
            self._nodes,
            ZoneOutcomes(self._outcomes, self._kinds[zone.policy.kind]),
            ZoneProfiles(self._profiles, zone.id),
        )

    def _add(self, context: ZoneContext) -> None:
        id, kind = context.zone.id, self._kinds[context.zone.policy.kind]
        try:
            policy = resolve_name(kind.zone)(context)
        except Exception as error:
            note(error, FaultBoundary(id, "configured"))
            raise
        self.policies[id], self.guarded[id] = policy, placed(id, policy)


def _digest(settings: PolicySettings) -> str:
    """Return the digest of settings, in hexadecimal."""
    return hashlib.blake2b(settings.model_dump_json().encode(), digest_size=_DIGEST_BYTES).hexdigest()
