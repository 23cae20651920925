"""An equal ledger gives equal bytes, on any machine and after any change that should keep them."""

from schemas.auction.evidence import JobReplanned
from schemas.decisions import JobRefunded, JobRejected, JobWithdrawn, NodeStatusChanged
from tests.streams.golden.ledger import CHAIN, STATE, fold, state_of


def test_the_committed_ledger_gives_the_committed_chain() -> None:
    cell, _ = fold()
    assert cell.chain.hex() == CHAIN.read_text().strip(), (
        "decisions, or their encoding, are not what they were. If that is meant, say so in CHANGELOG.md, run "
        "`make golden` (python -m tests.streams.golden) and commit what it writes; if not, find the change"
    )


def test_the_committed_ledger_gives_the_committed_state() -> None:
    cell, _ = fold()
    assert state_of(cell) == STATE.read_text(), (
        "a packed state is not what it was. A change of its layout, were it a default of a field, raises "
        "SNAPSHOT_VERSION; then run `make golden`"
    )


def test_golden_ledger_has_every_turn_of_job() -> None:
    _, decisions = fold()
    found = {(type(d.outcome), getattr(d.outcome, "reason", None)) for d in decisions}
    assert found >= {
        (JobRejected, "price_not_below_bid"),
        (JobRejected, "no_room_before_deadline"),
        (JobRejected, "deadline_too_soon"),
        (JobRejected, "no_vendor"),
        (JobReplanned, "behind_plan"),
        (JobReplanned, "node_lost"),
        (JobRefunded, "behind_plan"),
        (JobRefunded, "node_lost"),
        (JobRefunded, "run_failed"),
        (JobRefunded, "deadline_passed"),
        (JobRefunded, "slower_than_declared"),
        (JobRefunded, "dataset_size_misstated"),
        (JobWithdrawn, "user_request"),
        (NodeStatusChanged, "silent"),
        (NodeStatusChanged, "offline"),
    }
