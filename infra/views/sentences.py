"""Sentences from the reason of a decision and its facts. The log has the facts alone."""

import string
from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from infra.text import units
from infra.tools import tools_of
from infra.views.policy import policy_views, view_of
from schemas.base import Record
from schemas.decisions import EventFaulted
from schemas.facts import Fact
from schemas.installed import KINDS
from schemas.jobs import JobQuoteRequested, JobSubmitted

Sentences = Mapping[str, str]
"""Formats of a record's facts and fields, by reason, or by reason and case as `reason/case`."""


def failed_run_sentences(reason: str) -> Sentences:
    """Return the sentences for the facts of a failed run under a reason. The event of the failure has the
    node's message."""
    return {
        reason: "run {run_id} on node {node}",
        f"{reason}/refused": "node {node} refuses run {run_id}, {refusal}",
        f"{reason}/silent": "node {node} has reported nothing of run {run_id} for {silent_s:.0f} s",
    }


_GENERAL: Sentences = MappingProxyType(
    {
        **failed_run_sentences("run_failed"),
        "breaks_a_promise/costs_too_high": (
            "zone {zone}: a node of type {gpu_type} may cost {cost_micros} over the horizon, and "
            "{most_cost_micros} are added up exactly"
        ),
        "breaks_a_promise/live_jobs": (
            "the live jobs of the cell hold {held_bytes} bytes of a snapshot, and {left_bytes} would be left "
            "to them"
        ),
        "breaks_a_promise/no_room_for_live_jobs": (
            "{left_bytes} bytes of a snapshot would be left to live jobs, and {needed_bytes} are needed"
        ),
        "breaks_a_promise/other_base_model": (
            "zone {zone} keeps base model {base_model} while it has jobs, such as {job_id}"
        ),
        "breaks_a_promise/other_policy": "zone {zone} keeps its policy, {policy}: configure a new zone",
        "breaks_a_promise/servers_on_loan": (
            "zone {zone} keeps `lending` while servers are on loan, such as {server}"
        ),
        "breaks_a_promise/too_many_node_slots": (
            "the cell would have {node_slots} node-slots, and holds {most_node_slots} at most"
        ),
        "cell_already_configured": "the cell has a configuration: change its zones instead",
        "cell_full/live_jobs": (
            "the live jobs of the cell hold {held_bytes} of {limit_bytes} bytes, and {more_bytes} more find "
            "no room until some are over"
        ),
        "cell_full/jobs_of_user": (
            "jobs of user {user} hold {held_bytes} bytes, and with {more_bytes} more they would hold more "
            "than the {left_bytes} that are left for others: submit it again when some are over"
        ),
        "cell_full/waiting": (
            "the waiting bids of the cell hold {held_bytes} of {limit_bytes} bytes, and {more_bytes} more "
            "find no room until some are over"
        ),
        "cell_full/waiting_of_user": (
            "the waiting bids of user {user} hold {held_bytes} of {limit_bytes} bytes, and {more_bytes} more "
            "find no room until some are over"
        ),
        "cell_not_configured": "the cell has no configuration yet",
        "clock_went_back": "the clock is at {time_s} s, the tick at {tick_time_s} s",
        "command_refused": "node {node} refuses command {command_id}, {refusal}",
        "due_too_soon": (
            "reclaim {reclaim_id} is due at {due_s} s, and it is {time_s} s: zone {zone} "
            "guarantees {notice_s} s"
        ),
        "duplicate_event": "event {event_id} of {writer} was already folded in",
        "duplicate_job": "a job of this id was decided before",
        "duplicate_reclaim": "zone {zone} has made reclaim {reclaim_id} before",
        "inside_headroom": (
            "{left_servers} of {own_servers} servers are left: a load of {load} with headroom {headroom} "
            "needs {needed_servers}"
        ),
        "invalid_configuration/above_bound": "{field} is above its bound of {bound}",
        "invalid_configuration/base_model_too_large": (
            "zone {zone}: a node of type {gpu_type} has {memory_gib} GiB, and the base model takes "
            "{base_model_gib} GiB"
        ),
        "invalid_configuration/below_bound": "{field} is below its bound of {bound}",
        "invalid_configuration/configuration_too_long": (
            "the configuration would have {bytes} bytes, and {most_bytes} are the most"
        ),
        "invalid_configuration/costs_too_high": (
            "zone {zone}: a node of type {gpu_type} may cost {cost_micros} over the horizon, and "
            "{most_cost_micros} are added up exactly"
        ),
        "invalid_configuration/given_twice": "{name} is given twice",
        "invalid_configuration/gpu_type_too_slow": (
            "zone {zone}: a node of type {gpu_type} trains less than one sample in a slot of {slot_s} s"
        ),
        "invalid_configuration/invalid": "{field} is invalid",
        "invalid_configuration/lends_to_itself": "zone {zone} lends to itself",
        "invalid_configuration/no_node_left": "zone {zone} keeps at least one node",
        "invalid_configuration/no_room_for_live_jobs": (
            "{left_bytes} bytes of a snapshot would be left to live jobs, and {needed_bytes} are needed"
        ),
        "invalid_configuration/too_many_node_slots": (
            "the cell would have {node_slots} node-slots, and holds {most_node_slots} at most"
        ),
        "invalid_configuration/unknown_borrower": "zone {zone} lends to unknown zone {borrower}",
        "invalid_configuration/unknown_gpu_type": "zone {zone} has no GPU type {gpu_type}",
        "invalid_configuration/unknown_tariff": "zone {zone}: node {node} pays unknown tariff {tariff}",
        "invalid_configuration/window_too_large": (
            "{remembered_ids} ids would be remembered, and {most_remembered_ids} are the most"
        ),
        "job_ending": "job {job_id} is ending already",
        "more_than_on_loan": (
            "reclaim {reclaim_id} is of {servers} servers, and {servers_on_loan} of zone {zone} are on loan "
            "and not on their way back"
        ),
        "no_fitting_borrower": "no borrower has GPU type {gpu_type}",
        "no_load_report": "the zone has reported no load in the last {load_valid_s} s",
        "no_time_yet": "the cell's clock has not ticked yet",
        "event_not_supported": "the cell has no zone that supports {event_type}",
        "node_already_lent": "node {node} is lent to zone {zone}",
        "node_already_registered": "node {node} is owned by zone {zone}",
        "node_leaving": "node {node} is leaving zone {zone}",
        "node_lost": "node {node} is {status}",
        "node_not_lent": "node {node} serves zone {zone}, which owns it",
        "not_the_owner": "job {job_id} is of another user",
        "nothing_changes/cordoned": "node {node} is cordoned",
        "nothing_changes/leaving_the_cell": "node {node} is leaving the cell",
        "nothing_changes/not_cordoned": "node {node} is not cordoned",
        "nothing_changes/own_node": "zone {zone} owns node {node}",
        "nothing_changes/zone_is_so": "zone {zone} is configured so",
        "profile_refused/faster_than_node": (
            "a point of {gpu_type} trains {samples_per_s} samples/s, and a full node {most_samples_per_s}"
        ),
        "profile_refused/more_than_node": (
            "a point of {gpu_type} takes {memory_gib} GiB, and a node has {most_gib} besides the base model"
        ),
        "profile_refused/other_base_model": (
            "the profile is of base model {base_model}, and zone {zone} has {zone_base_model}"
        ),
        "profile_refused/takes_no_profiles": "zone {zone} has policy {policy}, which uses no profiles",
        "profile_refused/unknown_gpu_type": "zone {zone} has no GPU type {gpu_type}",
        "run_failed/ended": "node {node} has ended its run",
        "runner_missing": "node {node} lacks runners that policy {policy} needs: {runners}",
        "stale_adoption": (
            "rules {rules} were to follow rules {previous_rules} after ledger offset {state_offset}, and "
            "that is not where the cell is"
        ),
        "stale_load": "zone {zone} has reported a load of {latest_time_s} s, this one is of {time_s} s",
        "stale_report": "job {job_id} has no run {run_id} on node {node}",
        "terms_not_supported": "zone {zone} supports {supported}, not {terms}",
        "unknown_job": "job {job_id} is over, or was never admitted",
        "unknown_node": "the cell has no node {node}",
        "unknown_solve": "zone {zone} waits for no answer to request {request_id}",
        "unknown_zone": "the cell has no zone {zone}",
        "workload_not_supported": "zone {zone} runs {supported}, not {workload}",
        "wrong_base_model": "node {node} holds {base_model}, and zone {zone} has {zone_base_model}",
        "zone_does_not_lend": "zone {zone} is configured without `lending`",
    }
)


def sentence(record: Record, policy: str | None = None) -> str:
    """Return the reason of a decision as a sentence; empty if it would only repeat the reason's name.

    Args:
        policy: kind of the policy of the decision's zone; by default the one that registers the record.
    """
    if isinstance(record, EventFaulted):
        where = "the cell" if record.zone is None else f"zone {record.zone}"
        return f"{record.exception} in {where}, {record.place}: an error of the program, see the worker's log"
    fields = {name: getattr(record, name) for name in type(record).model_fields}
    facts = fields.get("facts", {})
    return sentence_of(fields["reason"], facts, fields, policy or _policy_of_type(type(record)))


def sentence_of(
    reason: str,
    facts: Mapping[str, Fact],
    fields: Mapping[str, Any] | None = None,
    policy: str | None = None,
) -> str:
    """Return the sentence of a reason and facts in a record with other fields, as `sentence`.

    Policies may have different sentences for one reason. If the policy is unknown, the first is used whose
    facts are present.
    """
    case = facts.get("case")
    key = reason if case is None else f"{reason}/{case}"
    values = {**(fields or {}), **facts}
    if isinstance(because := facts.get("because"), str):
        inner = {name: fact for name, fact in facts.items() if name not in ("because", "case")}
        values["because"] = sentence_of(because, inner, policy=policy) or because
    for text in formats_of(policy).get(key, ()):
        if _names(text) <= values.keys():
            return _FORMATTER.vformat(text, (), values)
    return listed(facts)


def listed(facts: Mapping[str, Fact]) -> str:
    """Return facts by name, for a reason without a sentence."""
    case = [str(facts["case"])] if "case" in facts else []
    named = [f"{name} {_FORMATTER.format_field(fact, '')}" for name, fact in facts.items() if name != "case"]
    return ", ".join([*case, *named])


class _Formatter(string.Formatter):
    """Formats lists with commas, and money in units."""

    def get_value(self, key: int | str, args: Any, kwargs: Mapping[str, Any]) -> Any:
        value = super().get_value(key, args, kwargs)
        return units(value) if isinstance(key, str) and key.endswith("_micros") else value

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, tuple | list):
            return ", ".join(map(str, value)) or "none"
        if isinstance(value, float) and not format_spec:
            return f"{value:.10g}"
        return str(super().format_field(value, format_spec))


_FORMATTER = _Formatter()


@cache
def formats_of(policy: str | None) -> Mapping[str, tuple[str, ...]]:
    """Return the formats of every key, those of a policy first; those of all policies if it is unknown."""
    views = policy_views() if policy is None else view_of(policy)
    found: dict[str, tuple[str, ...]] = {}
    for sentences in (*(view.sentences for view in views), _GENERAL):
        for key, text in sentences.items():
            found[key] = (*found.get(key, ()), text)
    return found


def policy_of(request: JobSubmitted | JobQuoteRequested | None) -> str | None:
    """Return the kind of the policy that accepts a job's workload and terms. None without a request, without
    such a policy, or if several with different views accept both."""
    if request is None:
        return None
    workload, terms = type(request.workload), type(request.terms)
    return _with_one_view(
        id
        for id, kind in KINDS.items()
        if workload in kind.workloads and terms in (*kind.terms, *kind.quoted_terms)
    )


@cache
def _policy_of_type(record: type[Record]) -> str | None:
    """Return the kind of the policy that registers a type of decisions; None if all policies have it."""
    return _with_one_view(id for id, kind in KINDS.items() if record in kind.outcomes)


def _with_one_view(policies: Iterable[str]) -> str | None:
    """Return the first of some policies if they share a view."""
    found = list(policies)
    return found[0] if len({tools_of(policy).view for policy in found}) == 1 else None


@cache
def _names(text: str) -> frozenset[str]:
    return frozenset(name for _, name, _, _ in _FORMATTER.parse(text) if name)
