"""Descriptions of the experts policy's own types: workloads, ranks, placements and routed tokens."""

from collections.abc import Iterator, Sequence

from infra.text import counted, lasting, written
from infra.views.experts.figures import ExpertsFiguresView, placed_on
from infra.views.experts.sentences import SENTENCES
from infra.views.policy import PolicyView
from infra.views.sentences import sentence
from schemas.base import Outcome, Record
from schemas.decisions import JobAdmitted
from schemas.experts.commands import ExpertsPlaced, RanksAssigned, RanksReleased
from schemas.experts.outcomes import LayerPlaced, PlacementDecided, QueuedRanks, RanksChanged
from schemas.experts.reports import ExpertsProfiled, ExpertsRouted, RoutingReport
from schemas.experts.workload import ExpertsTerms, GatingRule, MoeServeWorkload, MoeTrainWorkload

_MOST_LAYERS = 8
_MOST_EXPERTS = 4
_REASONS = {
    "initial": "its experts are placed by what its profile has counted",
    "popularity_shifted": "its placement follows the tokens, which go to other experts than before",
    "devices_changed": "its experts are placed again, for its new ranks",
}


class ExpertsView(PolicyView):
    """`PolicyView` of the experts policy."""

    sentences = SENTENCES
    figures = ExpertsFiguresView()

    def words(self, record: Record) -> list[str] | None:
        """Return words for records about one job alone, as `part_of` returns them."""
        match record:
            case MoeTrainWorkload():
                return list(_training(record))
            case MoeServeWorkload():
                return list(_serving(record))
            case ExpertsTerms():
                return ["queues it, without a bid or a deadline"]
            case QueuedRanks():
                return [_queue_place(record)]
            case JobAdmitted(evidence=QueuedRanks() as place):
                return ["admitted to the queue", _queue_place(place)]
            case RanksChanged():
                return [_changed(record)]
            case PlacementDecided():
                return list(_decided(record))
            case ExpertsProfiled():
                return list(_profiled(record))
            case ExpertsRouted():
                return [_routed(record)]
            case RanksAssigned():
                here = sum(member.ranks for member in record.members if member.node == record.node)
                ranks = counted(sum(member.ranks for member in record.members), "rank")
                at = f"generation {record.generation}, from {record.resume_samples} samples"
                return [f"{record.node} runs {here} of {ranks}: {at}"]
            case ExpertsPlaced():
                layers = counted(len(record.layers), "layer")
                return [f"{record.node} gets placement {record.revision}, of {layers}"]
            case RanksReleased():
                return [
                    f"{record.node} gives up its ranks of generation {record.generation} ({record.reason})"
                ]
        return None

    def happening(self, outcome: Outcome) -> str | None:
        """Return words for changes of ranks and placements."""
        match outcome:
            case JobAdmitted(evidence=QueuedRanks() as place):
                others = counted(place.jobs_waiting, "other job")
                return f"{outcome.job_id} queued with {others}: needs {counted(place.ranks, 'rank')}"
            case RanksChanged():
                return f"{outcome.job_id} {_changed(outcome)}"
            case PlacementDecided():
                layers = counted(len(outcome.layers), "layer")
                before, after = _mean_loads(outcome.layers)
                return (
                    f"{outcome.job_id} placement {outcome.revision} ({outcome.reason}), {layers}: the "
                    f"busiest device has {before:.2f} -> {after:.2f} times the mean load"
                )
        return None


def _gating(gating: GatingRule) -> str:
    if gating.threshold is None:
        return f"gating {gating.mode}"
    on = "" if gating.threshold_on is None else f" on the probabilities of {gating.threshold_on} experts"
    return f"gating {gating.mode}, threshold {gating.threshold:g}{on}"


def _training(job: MoeTrainWorkload) -> Iterator[str]:
    trains = "all weights" if job.adapter is None else f"an adapter of rank {job.adapter.rank}"
    yield f"{job.work_samples} samples of {job.dataset.path}, to train {trains} of {job.model}"
    converted = job.conversion
    model = ""
    if converted is not None:
        origin = "replace" if converted.initialization == "random" else "are made of"
        model = f"{converted.experts} experts {origin} each feed-forward network; "
    batch = f"global batch {job.hyperparameters.global_batch_size}"
    yield f"{model}{_gating(job.gating)}; {counted(job.ranks, 'rank')}, {batch}"


def _serving(job: MoeServeWorkload) -> Iterator[str]:
    asked = job.requests
    most = "" if job.total_samples is None else f", {job.total_samples} requests"
    until = "" if asked.until_s is None else f", until {written(asked.until_s)}"
    rate = "" if asked.rate_per_s is None else f", {asked.rate_per_s:g} a second"
    yield f"serves {job.model} to prompts of {asked.dataset.path}{most}{rate}{until}"
    yield (
        f"{_gating(job.gating)}; {counted(job.ranks, 'rank')} of {job.most_experts_per_device} experts at "
        f"most; scheme {job.scheme}, sample paths of {job.path_length} layers, {job.profile_batches} batches "
        "profiled"
    )


def _queue_place(place: QueuedRanks) -> str:
    waits = f"other jobs that wait: {place.jobs_waiting}; it needs {counted(place.ranks, 'device')} at once"
    if place.step_s is None or place.dispatch_s is None or place.running_s is None:
        return waits
    return (
        f"{waits}, and takes {lasting(place.running_s)} (by measured steps of its kind, within "
        f"{place.duration_error_pct:.0f} %): {place.step_s:.3g} s a step, {place.dispatch_s:.2g} s of it to "
        "dispatch tokens"
    )


def _changed(change: RanksChanged) -> str:
    why = f": {words}" if (words := sentence(change)) else ""
    match change.reason:
        case "started" | "resumed":
            return f"{change.reason} with {placed_on(change.members)}, generation {change.generation}"
        case "preempted" | "node_lost":
            return f"loses its ranks and is queued again ({change.reason}){why}"
        case "gave_way":
            return f"gives way and is queued again{why}"
        case "run_failed":
            return f"loses its ranks, as a run failed{why}"
        case "withdrawn":
            return "its ranks are ordered to stop, as its user withdraws it"
        case "ended":
            return "its ranks are ordered to stop, as its time is over"


def _decided(decision: PlacementDecided) -> Iterator[str]:
    yield f"{_REASONS[decision.reason]}: placement {decision.revision}"
    for layer in decision.layers[:_MOST_LAYERS]:
        yield _layer(layer)
    if len(decision.layers) > _MOST_LAYERS:
        yield f"and {len(decision.layers) - _MOST_LAYERS} more layers"


def _layer(layer: LayerPlaced) -> str:
    order = sorted(range(len(layer.popularity)), key=lambda expert: (-layer.popularity[expert], expert))
    first = ", ".join(
        f"{expert} ({layer.popularity[expert]:.0%}, on {layer.replicas[expert]})"
        for expert in order[:_MOST_EXPERTS]
    )
    row = f", {counted(layer.reports_in_a_row, 'report')} in a row" if layer.reports_in_a_row else ""
    return (
        f"layer {layer.placement.layer}: busiest device {layer.load_before:.2f} -> {layer.load:.2f} of the "
        f"mean{row}; most popular experts, and the devices that have them: {first}"
    )


def _mean_loads(layers: Sequence[LayerPlaced]) -> tuple[float, float]:
    count = len(layers)
    return sum(layer.load_before for layer in layers) / count, sum(layer.load for layer in layers) / count


def _profiled(report: ExpertsProfiled) -> Iterator[str]:
    accuracy = "" if report.accuracy is None else f"; {report.accuracy:.0%} of estimates were right"
    layers = counted(report.path_length, "layer")
    profiled = "profiled it" if report.profiled_in == "service" else "read the profile of its training"
    yield f"{report.node} has {profiled}: {counted(report.paths, 'sample path')} of {layers}{accuracy}"
    yield _tokens(report)


def _routed(report: ExpertsRouted) -> str:
    revised = f"; {report.revised} layers placed again for a batch" if report.revised else ""
    return (
        f"{report.node} has routed {report.batches} batches in {report.interval_s:.1f} s with placement "
        f"{report.revision}: {_tokens(report)}{revised}"
    )


def _tokens(report: RoutingReport) -> str:
    tokens = sum(sum(layer.tokens) for layer in report.layers)
    doubles = sum(layer.doubles for layer in report.layers)
    twice = f", {doubles} with two experts" if doubles else ""
    shares = [max(layer.tokens) / total for layer in report.layers if (total := sum(layer.tokens))]
    most = f"; up to {max(shares):.0%} of a layer go to one expert" if shares else ""
    layers = counted(len(report.layers), "layer")
    return f"{tokens} tokens over {layers} of {len(report.layers[0].tokens)} experts{twice}{most}"
