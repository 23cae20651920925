"""Questions of a merging zone to its solvers and their answers, in words."""

from collections.abc import Iterator, Mapping, Sequence

from infra.text import counted
from infra.views.sentences import sentence_of
from schemas.merging.estimates import EstimateSolution
from schemas.merging.problems import MergeSolution, Share
from schemas.solves import SolveFinished, SolveRequested

_PLANS = ("merge", "rival_allocation")


def competing_words(record: SolveRequested) -> list[str] | None:
    """Return words about a request for a plan, from the view of one of its jobs; None for other requests."""
    counts = record.question.counts
    if record.question.kind not in _PLANS:
        return None
    others = f" with {counted(counts['jobs'] - 1, 'other job')}" if counts["jobs"] > 1 else ""
    return [f"competes for {counted(counts['gpus'], 'GPU')}{others}"]


def requested_words(record: SolveRequested) -> list[str] | None:
    """Return words about a request to a solver, from the view of the zone."""
    counts = record.question.counts
    match record.question.kind:
        case "merge":
            jobs, gpus = counted(counts["jobs"], "job"), counted(counts["gpus"], "GPU")
            pairs = counted(counts["pairs"], "pair")
            asked = f"a solver is asked to share {gpus} among {jobs}; {pairs} of kinds may merge"
            return [asked, *_left_out(counts)]
        case "rival_allocation":
            jobs, gpus = counted(counts["jobs"], "job"), counted(counts["gpus"], "GPU")
            return [f"a solver is asked to share {gpus} among {jobs}", *_left_out(counts)]
        case "estimate":
            kinds, past = counted(counts["kinds"], "kind"), counted(counts["merges"], "past merge")
            return [f"a solver estimates the iterations of {kinds} of job, alone and merged; {past} known"]
    return None


def _left_out(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield words about the parts of a zone that a problem has no room for."""
    if counts["jobs_left_out"]:
        yield f"{counted(counts['jobs_left_out'], 'job')} that have waited least are left out"
    if counts["kinds_restricted"]:
        kinds = counted(counts["kinds_restricted"], "kind")
        yield f"{kinds} of jobs that have waited least may only have the fewest GPUs, or what they have now"


def answered_words(record: SolveFinished) -> list[str] | None:
    """Return words for a solver's answer; its effects are shown job by job."""
    match record.solution:
        case MergeSolution() as plan:
            gpus = counted(sum(share.gpus for share in plan.shares), "GPU")
            head = f"the solver gives {gpus} to {counted(len(plan.shares), 'task')}"
            most = ", as good as any" if plan.search == "optimal" else ""
            return [f"{head}, from {counted(plan.columns, 'choice')}{most}", *_merged(plan.shares)]
        case EstimateSolution() as answer:
            gains = sum(each.receiver_gain > 0 for each in answer.transfers)
            pairs = counted(len(answer.transfers), "pair")
            faults = [
                f"kind {place}: {sentence_of('unusable_profile', {'case': kind.fault})}"
                for place, kind in enumerate(answer.kinds)
                if kind.fault is not None
            ]
            return [f"the solver has estimated {pairs} of kinds, of which {gains} gain", *faults]
    return None


def _merged(shares: Sequence[Share]) -> Iterator[str]:
    yield from (_share(share) for share in shares if len(share.job_ids) > 1)


def _share(share: Share) -> str:
    sign = " || " if share.mode == "spatial" else " -> "
    return f"{sign.join(share.job_ids)} {counted(share.gpus, 'GPU')}"
