"""`millrace explain`."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from infra.commands.options import DEFAULT_PREFIX, BootstrapServers, CellName, Json, TopicPrefix, target_of
from infra.commands.output import print_json, progress, say
from infra.errors import CommandError
from infra.log.reader import LogReader
from infra.log.target import Target
from infra.views.offers import describe_offer, describe_plan
from infra.views.story import Chapter, Story
from infra.views.text import units, written
from schemas import commands, decisions, fleet, jobs, solves
from schemas.auction.batches import BatchProblem, BatchSolution
from schemas.auction.evidence import JobReplanned, evidence_of
from schemas.auction.terms import BidTerms
from schemas.codec import InvalidRecordError, decode_decision, decode_event
from schemas.kind import Terms, Workload
from schemas.lora import LoraWorkload
from schemas.topics import DECISIONS, LEDGER


def explain(
    job_id: Annotated[str, typer.Argument(help="The job's id.", metavar="JOB")],
    cell: CellName = None,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Tell the whole story of one job, from the log: bid, price, plan, every slot, progress, result."""
    stories = _stories(target_of(bootstrap_servers, topic_prefix, "auditor"), job_id)
    if cell is not None:
        stories = {name: story for name, story in stories.items() if name == cell}
    if not stories:
        raise CommandError(f"the log knows no job {job_id}" + (f" in cell {cell}" if cell else ""))
    if len(stories) > 1:
        raise CommandError(f"job {job_id} is in cells {', '.join(sorted(stories))}: choose with --cell")
    ((cell_name, story),) = stories.items()
    show(cell_name, story, json)


def show(cell: str, story: Story, json: bool) -> None:
    """Print a job's story."""
    if json:
        print_json({"cell": cell, **story.as_json()})
        return
    say(f"Job {story.job_id} in cell {cell}: {story.state}")
    for chapter in story.chapters:
        for line in _lines(chapter):
            say(line)


def _stories(target: Target, job_id: str) -> dict[str, Story]:
    """By cell, what its log says about the job."""
    ledger = target.topic(LEDGER)
    mention = job_id.encode()
    stories: dict[str, Story] = {}
    with (
        LogReader(target, [ledger, target.topic(DECISIONS)], "beginning") as reader,
        progress("reading the log") as done,
    ):
        for record in reader.to_end(done):
            if record.value is None or mention not in record.value:
                continue
            cell = (record.key or b"").decode(errors="replace")
            story = stories.setdefault(cell, Story(job_id))
            try:
                if record.topic == ledger:
                    story.take_event(record.offset, decode_event(record.value, record.headers))
                else:
                    story.take_decision(decode_decision(record.value))
            except InvalidRecordError:
                continue  # replay is who says so
    return {cell: story for cell, story in stories.items() if story.chapters}


def _lines(chapter: Chapter) -> Iterator[str]:
    when = "before the first tick" if chapter.time in (None, "") else written(chapter.time)
    head, *details = describe(chapter.record)
    yield f"{when:>26}  {head}"
    for detail in details:
        yield f"{'':>26}    {detail}"


def _described(value: Workload | Terms) -> str:
    """Workload or terms in words; by their fields where no words are known."""
    match value:
        case LoraWorkload():
            return (
                f"{value.work_samples} samples of {value.dataset.path}, rank {value.hyperparameters.rank}, "
                f"batch size {value.hyperparameters.batch_size}"
                + (", to be prepared by a vendor" if value.needs_preprocessing else "")
            )
        case BidTerms():
            return f"bids {units(value.bid_micros)}, for the work to be done by {written(value.deadline_s)}"
        case _:
            fields = value.model_dump(mode="json", exclude={"kind"})
            return f"{value.kind} " + ", ".join(f"{name} {field}" for name, field in fields.items())


def describe(record: Any) -> list[str]:
    """What happened, on a line, and the numbers behind it on further ones."""
    match record:
        case jobs.JobSubmitted():
            return [f"{record.user} {_described(record.terms)}", _described(record.workload)]
        case decisions.JobAdmitted():
            return [
                f"admitted ({record.reason}): pays {units(record.payment_micros)}",
                *describe_offer(evidence_of(record).offer),
            ]
        case decisions.JobRejected():
            return [
                f"rejected ({record.reason}): {record.detail}",
                *describe_offer(evidence_of(record).offer),
            ]
        case solves.SolveRequested(problem=BatchProblem(bids=(offered,))):
            prepared = "" if offered.vendor is None else f", its data prepared by {offered.vendor}"
            return [f"waits for a solver with the other bids of its slot{prepared}"]
        case solves.SolveFinished(solution=BatchSolution(plans=(plan,), status=status)):
            return [f"the solver ({status}) plans it in {len(plan.node_slots)} slots"]
        case commands.SlotAssigned():
            (order,) = record.runs
            return [
                f"slot {record.slot} on {record.node}: {order.quota_samples} samples, "
                f"from {order.resume_samples}"
            ]
        case fleet.RunStarted():
            counted = record.dataset_samples
            data = "" if counted is None else f"; its data hold {counted} samples"
            return [f"{record.node} starts run {record.run_id} at {record.samples_done} samples{data}"]
        case fleet.RunProgressed():
            done = ", run complete" if record.complete else ""
            at = f"{record.samples_done} samples, loss {record.loss:.4f}"
            return [f"{record.node} is at {at}, after {record.node_s:.1f} s of its time{done}"]
        case fleet.RunFinished():
            return [f"{record.node} has trained all {record.samples_done} samples, loss {record.loss:.4f}"]
        case fleet.RunFailed():
            return [f"{record.node} fails at {record.samples_done} samples: {record.error}"]
        case JobReplanned():
            if not record.plan.node_slots:
                return [f"planned again ({record.reason}): its present runs suffice, no more slots are held"]
            return [
                f"planned again ({record.reason}): {record.remaining_samples} samples are left",
                describe_plan(record.plan),
            ]
        case decisions.JobRefunded():
            kept = record.retained_micros and f", {units(record.retained_micros)} retained"
            return [f"refunded {units(record.refund_micros)}{kept or ''} ({record.reason}): {record.detail}"]
        case decisions.JobWithdrawn():
            return [
                f"withdrawn: {units(record.returned_micros)} returned, "
                f"{units(record.retained_micros)} retained"
            ]
        case decisions.JobCompleted():
            return [
                f"completed on {record.node}: {record.samples_done} samples, loss {record.loss:.4f}",
                f"adapter {record.adapter_path}, BLAKE2b {record.adapter_digest}",
            ]
        case commands.RunCancelled():
            return [f"{record.node} is told to stop"]
        case jobs.JobWithdrawalRequested():
            return [f"{record.user} gives the job up"]
        case _:
            return [record.TYPE]
