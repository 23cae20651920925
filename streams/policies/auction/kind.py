"""The manifests of the two auctions and their four baselines."""

from schemas.auction.batches import BatchProblem, BatchSolution
from schemas.auction.bids import QUOTES, BidTerms, DeadlineTerms, QuoteAccepted, VendorLeft, VendorQuoted
from schemas.auction.deliveries import (
    PreprocessingAccepted,
    PreprocessingClosed,
    PreprocessingDelivered,
    PreprocessingFailed,
    PreprocessingOrdered,
)
from schemas.auction.evidence import AuctionEvidence, JobReplanned, ZonePriced
from schemas.auction.settings import (
    AuctionPolicy,
    EarliestFinishPolicy,
    FixedPricePolicy,
    NoMergingPolicy,
    PdftspPolicy,
    TitanPolicy,
)
from schemas.kind import Input, PolicyKind, PolicySettings, Solve
from schemas.lora import LoraWorkload
from schemas.lora_commands import RunCancelled, SlotAssigned


def _kind(
    settings: type[PolicySettings], solves: tuple[Solve, ...] = (), follows: tuple[str, ...] = ()
) -> PolicyKind:
    return PolicyKind(
        settings=settings,
        zone="streams.policies.auction.zone:AuctionZone",
        workloads=(LoraWorkload,),
        terms=(BidTerms,),
        quoted_terms=(DeadlineTerms,),
        evidence=(AuctionEvidence,),
        inputs=tuple(
            Input(event, QUOTES)
            for event in (VendorQuoted, VendorLeft, PreprocessingDelivered, PreprocessingFailed)
        ),
        outcomes=(
            *(JobReplanned, QuoteAccepted, ZonePriced, SlotAssigned, RunCancelled),
            *(PreprocessingOrdered, PreprocessingAccepted, PreprocessingClosed),
        ),
        reasons={
            "job.admitted": ("bid_above_price",),
            "job.rejected": (
                "price_not_below_bid",
                "no_room_before_deadline",
                "deadline_too_soon",
                "no_vendor",
                "unknown_gpu_type",
                "no_throughput_known",
                "larger_than_a_node",
                "memory_understated",
                "not_in_schedule",
                "solver_found_nothing",
                "plan_not_feasible",
            ),
            "job.refunded": (
                "behind_plan",
                "deadline_passed",
                "slower_than_declared",
                "memory_understated",
                "dataset_size_misstated",
                "dataset_unfit",
                "delivery_failed",
                "delivery_late",
            ),
            "event.ignored": ("unknown_vendor", "unknown_order", "order_is_over"),
        },
        solves=solves,
        follows=follows,
        warm_up="streams.policies.auction.warm_up:warm_up_events",
        awaits_kernels="streams.policies.auction.warm_up:is_large",
    )


AUCTION = _kind(AuctionPolicy, follows=("pdftsp",))
PDFTSP = _kind(PdftspPolicy, follows=("auction",))
EARLIEST_FINISH = _kind(EarliestFinishPolicy)
NO_MERGING = _kind(NoMergingPolicy)
FIXED_PRICE = _kind(FixedPricePolicy)
TITAN = _kind(
    TitanPolicy,
    solves=(
        Solve(
            problem=BatchProblem,
            solution=BatchSolution,
            function="solvers.auction.baselines.titan:solve_batch",
            smallest="solvers.auction.baselines.titan:smallest_batch",
        ),
    ),
)
