"""Descriptions of the merging policy's own types: workloads, profiles, tasks, merges, plans and commands."""

from infra.text import counted, written
from infra.views.merging.figures import MergingFiguresView
from infra.views.merging.sentences import SENTENCES
from infra.views.merging.solves import answered_words, competing_words, requested_words
from infra.views.merging.words import (
    changed_words,
    evaluated_words,
    evaluation_words,
    forecast_words,
    plan_words,
    profile_words,
    queued_words,
    workload_words,
)
from infra.views.policy import PolicyView
from schemas.base import Event, Outcome, Record
from schemas.decisions import JobAdmitted
from schemas.merging.commands import LoaderPrewarmed, ProfileOrdered, TaskAssigned, TaskReleased
from schemas.merging.outcomes import (
    JobForetold,
    MergeEvaluated,
    PlanDecided,
    QueuedTask,
    TaskChanged,
)
from schemas.merging.reports import TaskEvaluated, TaskProfiled
from schemas.merging.workload import MergingTerms, TuningWorkload
from schemas.solves import SolveFinished, SolveRequested


class MergingView(PolicyView):
    """`PolicyView` of the merging policy."""

    sentences = SENTENCES
    figures = MergingFiguresView()

    def part_of(self, record: Event | Outcome, job_id: str) -> Event | Outcome | None:
        """Return a record of a task whole, as it names the jobs of the merge, and the result of a merge for
        its donor too."""
        match record:
            case TaskChanged() | TaskReleased() if job_id in record.job_ids:
                return record
            case TaskAssigned() if any(order.job_id == job_id for order in record.orders):
                return record
            case ProfileOrdered() | LoaderPrewarmed() if record.order.job_id == job_id:
                return record
            case MergeEvaluated(mode="temporal") if record.partner == job_id:
                return record
        return None

    def words(self, record: Record) -> list[str] | None:
        """Return words for records about one job, or about the zone."""
        match record:
            case TuningWorkload():
                return list(workload_words(record))
            case MergingTerms():
                return ["queues it, without a bid or a deadline"]
            case QueuedTask():
                return [queued_words(record)]
            case JobAdmitted(evidence=QueuedTask() as place):
                return ["admitted to the queue", queued_words(place)]
            case JobForetold():
                return list(forecast_words(record))
            case TaskProfiled():
                return list(profile_words(record))
            case TaskEvaluated():
                return [evaluated_words(record)]
            case TaskChanged():
                return list(changed_words(record))
            case MergeEvaluated():
                return list(evaluation_words(record))
            case PlanDecided():
                return list(plan_words(record))
            case SolveRequested():
                return (competing_words(record) if len(record.job_ids) == 1 else None) or requested_words(
                    record
                )
            case SolveFinished():
                return answered_words(record)
        return _command(record)

    def happening(self, outcome: Outcome) -> str | None:
        """Return words for profiles, changes of tasks, results of merges, failed plans, and the zone's
        state."""
        match outcome:
            case JobAdmitted(evidence=QueuedTask() as place):
                return f"{outcome.job_id} queued: {queued_words(place)}"
            case JobForetold():
                return f"{outcome.job_id}: {next(forecast_words(outcome))}"
            case TaskChanged():
                return f"{', '.join(outcome.job_ids)}: {next(changed_words(outcome))}"
            case MergeEvaluated():
                return next(evaluation_words(outcome))
            case PlanDecided():
                return f"zone {outcome.zone}: {next(plan_words(outcome))}"
            case SolveRequested():
                words = requested_words(outcome)
                return None if words is None else f"zone {outcome.zone}: {words[0]}"
        return None


def _command(record: Record) -> list[str] | None:
    match record:
        case ProfileOrdered():
            on, steps = counted(record.gpus, "GPU"), counted(record.iterations, "iteration")
            return [f"{record.node} profiles it on {on}: {steps} or {record.limit_s:g} s at most"]
        case TaskAssigned():
            here = sum(member.gpus for member in record.members if member.node == record.node)
            gpus = counted(sum(member.gpus for member in record.members), "GPU")
            jobs = ", ".join(
                f"{each.job_id} from iteration {each.resume_iterations}" for each in record.orders
            )
            task = f"task {record.task_id}.{record.generation}"
            return [f"{record.node} runs it with {here} of {gpus}: {task}, {jobs}"]
        case TaskReleased():
            return [
                f"{record.node} ends its part of task {record.task_id}.{record.generation} ({record.reason})"
            ]
        case LoaderPrewarmed():
            return [f"{record.node} prepares its data loader, to run from {written(record.starts_s)}"]
    return None
