"""Every decision with facts has a sentence."""

from collections.abc import Iterable

from infra.views.sentences import listed, sentence
from schemas.base import Record
from schemas.codec import Decision
from schemas.loans import OfferAnswered


def check_sentences(decisions: Iterable[Decision]) -> None:
    """Check that views word the reasons of decisions.

    Raises:
        AssertionError: naming a reason and facts that no view has a sentence for.
    """
    for decision in decisions:
        outcome = decision.outcome
        for record in outcome.refused if isinstance(outcome, OfferAnswered) else (outcome,):
            _check(record)


def _check(record: Record) -> None:
    facts = getattr(record, "facts", {})
    reason = getattr(record, "reason", "")
    if facts:
        assert sentence(record) != listed(facts), (reason, facts)
