"""A reason has the sentence of the policy of its zone."""

from collections.abc import Iterator
from typing import get_args

import pytest
from pydantic import ValidationError
from pydantic_core.core_schema import ErrorType

from infra.tools import tools_of
from infra.views import sentences
from infra.views.policy import view_of
from infra.views.sentences import listed, policy_of, sentence, sentence_of
from infra.views.words import describe
from schemas.cells import MAX_SLOT_S
from schemas.codec import facts_of
from schemas.decisions import JobRejected
from schemas.experts.outcomes import RanksChanged
from tests.schemas.test_cells import REFUSED, Change, configured
from tests.support.cells import bid
from tests.support.elastic import submit

REASON = "larger_than_the_zone"
TEXTS = {"elastic": "{size} elastic workers", "experts": "{size} ranks"}


@pytest.fixture
def one_reason(monkeypatch: pytest.MonkeyPatch) -> Iterator[JobRejected]:
    """A rejection for which two policies have sentences of the same facts."""
    sentences.formats_of.cache_clear()
    for policy, text in TEXTS.items():
        (view,) = view_of(policy)
        monkeypatch.setattr(view, "sentences", {REASON: text})
    yield JobRejected(job_id="j", user="u", zone="z", reason=REASON, facts={"size": 3})
    sentences.formats_of.cache_clear()


def test_two_policies_have_two_sentences(one_reason: JobRejected) -> None:
    assert sentence(one_reason, "elastic") == "3 elastic workers"
    assert sentence(one_reason, "experts") == "3 ranks"
    (line,) = describe(one_reason, "experts")
    assert line == f"rejected ({REASON}): 3 ranks"


def test_without_its_policy_the_first_fits(one_reason: JobRejected) -> None:
    assert sentence(one_reason) == "3 elastic workers"


def test_a_decision_of_a_policy_has_its_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = RanksChanged(
        zone="z", job_id="j", generation=1, reason="preempted", members=(), facts={"node": "n"}
    )
    sentences.formats_of.cache_clear()
    monkeypatch.setattr(view_of("elastic")[0], "sentences", {"preempted": "workers on {node}"})
    assert sentence(changed) == "node n is to leave"
    sentences.formats_of.cache_clear()


@pytest.mark.parametrize("change", [change for change, _ in REFUSED.values()], ids=REFUSED.keys())
def test_invalid_configuration_has_a_sentence(change: Change) -> None:
    with pytest.raises(ValidationError) as refused:
        configured(change)
    facts = facts_of(refused.value)
    assert sentence_of("invalid_configuration", facts) != listed(facts)
    assert facts["case"] not in get_args(ErrorType), "the log does not depend on a library"


def test_bounds_are_named_by_field() -> None:
    with pytest.raises(ValidationError) as refused:
        configured(lambda cell: cell.update(slot_s=1e9))
    facts = facts_of(refused.value)
    assert facts == {"case": "above_bound", "field": "slot_s", "bound": MAX_SLOT_S}
    assert sentence_of("invalid_configuration", facts) == f"slot_s is above its bound of {MAX_SLOT_S:g}"


def test_other_faults_are_named_by_field_alone() -> None:
    with pytest.raises(ValidationError) as refused:
        configured(lambda cell: cell["zones"][0]["policy"].update(order="dearest"))
    assert facts_of(refused.value) == {"case": "invalid", "field": "zones.0.policy.pdftsp.order"}


def test_a_submission_shows_the_policy() -> None:
    assert policy_of(submit("j")) == "elastic"
    assert tools_of(policy_of(bid()) or "").view == tools_of("auction").view
    assert policy_of(None) is None
