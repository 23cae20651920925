"""Decisions and evidence of a merging zone in words: jobs, profiles, tasks and merges."""

from collections.abc import Iterator

from infra.text import counted, lasting, signed_percent
from infra.views.merging.figures import chain, places, worth
from infra.views.sentences import sentence
from schemas.merging.commands import TransferMode
from schemas.merging.outcomes import (
    JobForetold,
    MergeEvaluated,
    MergeForecast,
    PlanDecided,
    QueuedTask,
    TaskChanged,
)
from schemas.merging.reports import TaskEvaluated, TaskProfiled
from schemas.merging.workload import TuningWorkload

_HOW: dict[TransferMode, str] = {
    "normal": "from the base model",
    "temporal": "the second starts from the weights that the first leaves",
    "spatial": "both are trained in one run",
}


def workload_words(job: TuningWorkload) -> Iterator[str]:
    """Yield words about a job's training and its target."""
    tuned = job.hyperparameters
    data = counted(job.dataset.samples, "sample")
    yield (
        f"an adapter of rank {tuned.rank} of {job.model}, on {data} of {job.dataset.path}, batch size "
        f"{tuned.batch_size}, learning rate {tuned.learning_rate:g}"
    )
    most = f"after {job.target.most_iterations} iterations"
    if job.target.accuracy is None:
        yield f"done {most}"
    else:
        reached = f"an accuracy of {job.target.accuracy:g} on {job.validation_path}"
        yield f"done at {reached}, or {most}"
    if not job.sharing:
        yield "never merged: it does not share"
    if job.reusable:
        yield "later jobs may start from its adapter"
    if job.pipeline:
        yield "cut into stages over GPUs"


def queued_words(place: QueuedTask) -> str:
    """Return words about a new job in the queue."""
    profile = "needs no profile run" if place.is_profiled else "is profiled first"
    return f"other jobs that wait: {place.jobs_waiting}; it {profile}"


def forecast_words(record: JobForetold) -> Iterator[str]:
    """Yield words about the forecast of a job, and its source."""
    iterations = counted(record.iterations, "iteration")
    match record.reason:
        case "profiled":
            yield f"profiled; not yet estimated, assumed to need {iterations}"
        case "estimated":
            yield f"estimated: {iterations} until its target"
        case "kind_known":
            yield f"jobs of equal data and hyperparameters were profiled: {iterations} until its target"
        case "kind_finished":
            yield f"jobs of equal data and hyperparameters have ended: {iterations} until its target"
        case "unusable_profile":
            yield f"its profile was refused, so it runs unmerged: {sentence(record)}"
        case "profile_failed":
            yield f"its profile run failed, so it runs unmerged: {sentence(record)}"
    yield (
        f"a step takes {_seconds(record.step_s)} with the fewest GPUs, its data loader "
        f"{_seconds(record.loader_s)}, and it needs {record.memory_gib:.3g} GiB besides the base model"
    )


def profile_words(report: TaskProfiled) -> Iterator[str]:
    """Yield words about the results of a profile run."""
    steps = counted(len(report.losses), "iteration")
    yield f"{report.node} has profiled it: loss {report.losses[0]:.4f} to {report.losses[-1]:.4f} in {steps}"
    for step in report.steps:
        yield (
            f"a step takes {_seconds(step.step_s)} with {counted(step.gpus, 'GPU')}, micro-batch "
            f"{step.micro_batch_size} x {step.accumulation_steps}"
        )
    accuracy = (
        "no validation data" if report.accuracy is None else f"accuracy {report.accuracy:.4f} untrained"
    )
    if report.accuracy_after_epoch is not None:
        accuracy += f", {report.accuracy_after_epoch:.4f} after an epoch"
    yield (
        f"{accuracy}; data loader {_seconds(report.loader_s)}, {counted(report.dataset_samples, 'record')}; "
        f"{report.memory_gib:.3g} GiB; embedding of {len(report.embedding)} values"
    )


def evaluated_words(report: TaskEvaluated) -> str:
    """Return words about an intermediate evaluation of a job."""
    at = f"accuracy {report.accuracy:.4f}"
    if report.phase == "donor":
        donor = f"the weights that {report.partner} has after {_epochs(report)}"
        return f"{report.node} measures {at}, with {donor}"
    loss = "" if report.loss is None else f", loss {report.loss:.4f}"
    merged = "" if report.partner is None else f", merged with {report.partner}"
    done = f"{_epochs(report)}, {counted(report.iterations, 'iteration')}"
    return f"{report.node} measures {at}{loss} after {done}{merged}"


def _epochs(report: TaskEvaluated) -> str:
    epochs = f"{report.epochs:.3g}"
    return "1 epoch" if epochs == "1" else f"{epochs} epochs"


def changed_words(change: TaskChanged) -> Iterator[str]:
    """Yield a line about the change of a task, and further lines about its forecasts."""
    gpus, before = counted(change.gpus, "GPU"), counted(change.gpus_before, "GPU")
    where = f" on {places(change.members)}" if change.members else ""
    why = f": {words}" if (words := sentence(change)) else ""
    match change.reason:
        case "started" | "resumed":
            source = f", from the adapter of {change.foretold[0].partner}" if change.foretold else ""
            yield f"{change.reason} with {gpus}{where}{source}"
        case "reallocated":
            yield f"continues with {gpus}, {change.gpus_before} before{where}"
        case "merged":
            yield f"merged, {chain(change)}, with {gpus}{where}: {_HOW[change.mode]}"
        case "separated":
            yield f"{chain(change)} is not to be merged any more"
        case "undone" if len(change.job_ids) == 1:
            yield f"its merge is undone, it is to restart alone{why}"
        case "undone":
            yield f"the merge {chain(change)} is undone, both are to go on alone{why}"
        case "preempted":
            yield f"loses its {before} and waits{why}"
        case "node_lost":
            yield f"loses its {before} with a node and waits{why}"
        case "run_failed":
            yield f"loses its {before}, as a run failed{why}"
        case "job_over" if change.mode == "temporal":
            yield f"begins with {gpus}{where}, from the weights that its donor has left"
        case "job_over":
            yield f"continues with {gpus}{where}, the other job being done"
        case "withdrawn":
            yield f"ends with {before}, as a job is withdrawn"
    yield from (_merge_words(each) for each in change.foretold if each.iterations != each.iterations_alone)
    if change.gpus:
        yield f"the rest is expected to take {lasting(change.remaining_s)} with these GPUs"


def evaluation_words(record: MergeEvaluated) -> Iterator[str]:
    """Yield words about the result of a merge for one of its jobs, compared with the forecast."""
    pair = merge_name(record)
    match record.reason:
        case "finished":
            yield f"the merge {pair} is over for {record.job_id}: {worth(record.saved_s)}"
        case "undone":
            yield f"the merge {pair} was no gain for {record.job_id}: {worth(record.saved_s)}"
        case "ended_early":
            yield f"the merge {pair} ended before {record.job_id} was done: {worth(record.saved_s)}"
    came = "not known, as no job of its kind has ended that ran alone"
    if record.gain is not None:
        came = f"{signed_percent(record.gain)} measured"
    yield f"gain of its accuracy: {signed_percent(record.foretold_gain)} forecast, {came}"
    yield (
        f"iterations: {record.foretold_iterations} forecast, {record.iterations} taken, "
        f"{record.iterations_alone} alone"
    )


def merge_name(record: MergeEvaluated) -> str:
    """Return `a -> b` or `a || b`."""
    sign = "->" if record.mode == "temporal" else "||"
    return f"{record.partner} {sign} {record.job_id}"


def plan_words(plan: PlanDecided) -> Iterator[str]:
    """Yield words about the result of a request for an allocation."""
    match plan.reason:
        case "applied":
            dropped = f", {plan.dropped} of it cannot be given any more" if plan.dropped else ""
            yield f"a plan gives GPUs to {counted(plan.jobs, 'task')}{dropped}"
        case "kept_last":
            yield "the solver has found no plan in time: the last one stays"
        case "out_of_date":
            yield "nothing of the plan fits any more: things stay as they are"
    if plan.objective is not None:
        least = "" if plan.bound is None else f", no plan has less than {plan.bound:.4g}"
        yield f"sum of slowdowns {plan.objective:.4g}{least}; solved in {plan.solve_s:.2f} s"


def _merge_words(record: MergeForecast) -> str:
    return (
        f"forecast for {record.job_id}: a gain of {signed_percent(record.gain)} in accuracy, and "
        f"{record.iterations} iterations instead of {record.iterations_alone}"
    )


def _seconds(time_s: float) -> str:
    return f"{time_s:.3g} s"
