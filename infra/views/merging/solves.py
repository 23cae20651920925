"""What a merging zone asks its solvers and what they answer, in words."""

from collections.abc import Iterator, Sequence

from infra.views.text import counted, lasting
from schemas.merging.estimates import EstimateProblem, EstimateSolution
from schemas.merging.problems import MergeProblem, MergeSolution, RivalProblem, Share
from schemas.solves import SolveFinished, SolveRequested


def own_request(record: SolveRequested, job_id: str) -> SolveRequested | None:
    """A request for a plan with this job alone, if it has waited for an interval at most. Those that run or
    go on waiting are asked about in every interval too; that is no news of them."""
    match record.problem:
        case MergeProblem() as problem:
            following = {unit.follower for unit in problem.units}
            units = tuple(
                unit
                for unit in problem.units
                if job_id in unit.job_ids
                and not unit.gpus
                and unit.waited_s <= problem.interval_s
                and job_id not in following
            )
            own = problem.model_copy(update={"units": units, "transfers": ()})
            return record.model_copy(update={"problem": own}) if units else None
        case RivalProblem() as problem:
            jobs = tuple(
                job
                for job in problem.jobs
                if job.job_id == job_id and not job.gpus and job.waited_s <= problem.interval_s
            )
            waiting = problem.model_copy(update={"jobs": jobs})
            return record.model_copy(update={"problem": waiting}) if jobs else None
    return None


def waiting_words(record: SolveRequested) -> list[str] | None:
    """Of a request about one job alone, see `own_request`; None for others."""
    match record.problem:
        case MergeProblem(units=(unit,)) as problem:
            needs = f"{unit.iterations:.0f} iterations left, has waited for {lasting(unit.waited_s)}"
            return [f"competes for {counted(problem.gpus, 'GPU')}: {needs}"]
        case RivalProblem(jobs=(job,)) as problem:
            waits = f"has waited for {lasting(job.waited_s)} in all"
            return [f"competes for {counted(problem.gpus, 'GPU')} ({problem.scheme}): {waits}"]
    return None


def requested_words(record: SolveRequested) -> list[str] | None:
    """What a zone asks a solver."""
    match record.problem:
        case MergeProblem() as problem:
            pairs = counted(len(problem.transfers), "pair")
            jobs = counted(sum(len(unit.job_ids) for unit in problem.units), "job")
            gpus = counted(problem.gpus, "GPU")
            asked = f"a solver is asked to share {gpus} among {jobs}; {pairs} of kinds may merge"
            return [asked, *_left_out(problem)]
        case RivalProblem() as problem:
            jobs = counted(len(problem.jobs), "job")
            asked = f"{problem.scheme} is asked to share {counted(problem.gpus, 'GPU')} among {jobs}"
            return [asked, *_left_out(problem)]
        case EstimateProblem() as problem:
            kinds, past = counted(len(problem.kinds), "kind"), counted(len(problem.outcomes), "past merge")
            return [f"a solver is asked what {kinds} of jobs need, alone and merged; {past} known"]
    return None


def _left_out(problem: MergeProblem | RivalProblem) -> Iterator[str]:
    """What a question has no room for."""
    if problem.jobs_left_out:
        yield f"{counted(problem.jobs_left_out, 'job')} that have waited least are left out"
    if problem.kinds_restricted:
        kinds = counted(problem.kinds_restricted, "kind")
        yield f"{kinds} of jobs that have waited least may only have the fewest GPUs, or what they have now"


def answered_words(record: SolveFinished) -> list[str] | None:
    """What a solver has found for a zone; what becomes of it is told job by job."""
    match record.solution:
        case MergeSolution() as plan:
            gpus = counted(sum(share.gpus for share in plan.shares), "GPU")
            head = f"the solver gives {gpus} to {counted(len(plan.shares), 'task')}"
            most = ", as good as any" if plan.search == "optimal" else ""
            return [f"{head}, from {counted(plan.columns, 'choice')}{most}", *_merged(plan.shares)]
        case EstimateSolution() as answer:
            gains = sum(each.receiver_gain > 0 for each in answer.transfers)
            pairs = counted(len(answer.transfers), "pair")
            faults = [f"kind {place}: {kind.fault}" for place, kind in enumerate(answer.kinds) if kind.fault]
            return [f"the solver has estimated {pairs} of kinds, of which {gains} gain", *faults]
    return None


def _merged(shares: Sequence[Share]) -> Iterator[str]:
    yield from (_share(share) for share in shares if len(share.job_ids) > 1)


def _share(share: Share) -> str:
    sign = " || " if share.mode == "spatial" else " -> "
    return f"{sign.join(share.job_ids)} {counted(share.gpus, 'GPU')}"
