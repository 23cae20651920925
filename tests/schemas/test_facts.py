"""Facts of decisions hold numbers, identifiers and words, and no sentences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas.decisions import EventFaulted, EventIgnored
from schemas.facts import quoted

SENTENCE = "this is a sentence"


def ignored(**facts: object) -> EventIgnored:
    return EventIgnored(reason="unknown_zone", facts=facts)


@pytest.mark.parametrize("name", ["case", "because", "zone"])
@pytest.mark.parametrize("text", [SENTENCE, "", "a\n", "naïve"])
def test_no_fact_is_a_sentence(name: str, text: str) -> None:
    with pytest.raises(ValidationError, match=name):
        ignored(**{name: text})


@pytest.mark.parametrize("name", ["case", "because"])
@pytest.mark.parametrize("word", ["A_Word", "a-word", "1", 1, ("a", "b")])
def test_a_case_is_a_word(name: str, word: object) -> None:
    with pytest.raises(ValidationError, match=f"the fact {name} must be a word"):
        ignored(**{name: word})


def test_no_list_has_a_sentence() -> None:
    with pytest.raises(ValidationError, match="zones"):
        ignored(zones=("a", SENTENCE))


@given(st.text(min_size=1))
def test_a_quoted_text_is_a_fact(text: str) -> None:
    assert ignored(path=quoted(text)).facts["path"] == quoted(text)


@pytest.mark.parametrize("path", ["data/train-1.jsonl", "zones.0.policy", "vendors/v_1"])
def test_a_path_is_quoted_unchanged(path: str) -> None:
    assert quoted(path) == path


def test_a_quoted_path_has_no_spaces() -> None:
    assert quoted("my data/é~.jsonl") == "my%20data/%C3%A9%7E.jsonl"


@pytest.mark.parametrize("field", ["place", "exception"])
def test_a_fault_has_no_sentence(field: str) -> None:
    fault = EventFaulted(
        reason="cell_raised",
        event_id="e",
        event_type="t",
        exception="ValueError",
        zone=None,
        place="fold",
        job_id=None,
    )
    with pytest.raises(ValidationError, match=field):
        EventFaulted.model_validate({**fault.model_dump(), field: SENTENCE})
