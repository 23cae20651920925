"""A record costs what its sequence can use, however long it is."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from executors.lora.chat import MOST_TURNS, read_messages
from executors.lora.records import DatasetRecord, LabelledRecords, TextRecord, TextRecords
from executors.lora.shared_base import SharedBase
from executors.lora.tokens import CHARACTERS_PER_TOKEN
from executors.moe.serving.requests import Prompts
from tests.support.examples import examples

LENGTH = 32
BOUND = LENGTH * CHARACTERS_PER_TOKEN
MEBIBYTE = 1 << 20
CHATML = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


class Counting:
    """A tokenizer that counts the characters it is given, and the messages it renders."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, truncation_side: str = "right") -> None:
        self._tokenizer = copy.deepcopy(tokenizer)
        self._tokenizer.chat_template = CHATML
        self._tokenizer.truncation_side = self.truncation_side = truncation_side
        self.eos_token_id = tokenizer.eos_token_id
        self.characters = 0
        self.messages = 0

    def encode(self, text: str, **how: Any) -> list[int]:
        self.characters += len(text)
        return self._tokenizer.encode(text, **how)

    def apply_chat_template(self, conversation: list[dict[str, str]], **how: Any) -> Any:
        self.messages += len(conversation)
        return self._tokenizer.apply_chat_template(conversation, **how)

    def decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids)


def text(content: str) -> DatasetRecord:
    return TextRecords().parse({"text": content})


def completion(content: str) -> DatasetRecord:
    return TextRecords().parse({"prompt": "say", "completion": content})


def prompt(content: str) -> DatasetRecord:
    return TextRecords().parse({"prompt": content, "completion": "said"})


def output(content: str) -> DatasetRecord:
    return TextRecords().parse({"instruction": "say", "output": content})


def answer(content: str) -> DatasetRecord:
    turns = [{"role": "user", "content": "say"}, {"role": "assistant", "content": content}]
    return read_messages(turns)


def question(content: str) -> DatasetRecord:
    turns = [{"role": "user", "content": content}, {"role": "assistant", "content": "said"}]
    return read_messages(turns)


def labelled(content: str) -> DatasetRecord:
    return LabelledRecords(("a", "b"), "last").parse({"text": content, "label": 1})


def request(content: str) -> DatasetRecord:
    return Prompts().parse({"prompt": content})


FORMS = [text, completion, prompt, output, answer, question, labelled, request]


@pytest.mark.parametrize("form", FORMS)
def test_long_record_costs_no_more_than_bound(base: SharedBase, form: Any) -> None:
    used: list[int] = []
    sequences: list[list[int]] = []
    for size in (BOUND, MEBIBYTE):
        tokenizer = Counting(base.tokenizer)
        sequences.append(form("abcdefg " * (size // 8)).tokenize(tokenizer, LENGTH).token_ids)
        used.append(tokenizer.characters)
    assert used[1] <= used[0]
    assert used[1] <= 2 * BOUND
    assert sequences[1] == sequences[0]
    assert len(sequences[0]) == LENGTH


def chat(first: int, turns: int) -> list[dict[str, str]]:
    """Return `turns` turns of the user, and then of both."""
    said = [{"role": "user", "content": "a"}] * first
    return (said + [{"role": "assistant", "content": "b"}, {"role": "user", "content": "a"}] * turns)[:turns]


@pytest.mark.parametrize("first", [1, MOST_TURNS - 2 * LENGTH])
def test_long_chat_costs_only_usable_part(base: SharedBase, first: int) -> None:
    tokenizer = Counting(base.tokenizer)
    record = read_messages(chat(first, MOST_TURNS))
    assert len(record.tokenize(tokenizer, LENGTH).token_ids) == LENGTH
    assert tokenizer.characters <= 2 * BOUND
    # The sequence has room for less than one answer in four characters.
    assert tokenizer.messages <= 2 * (LENGTH + 1) * (LENGTH + 4)


@pytest.mark.parametrize("first", [1, MOST_TURNS // 2])
def test_longest_chat_renders_few_turns(base: SharedBase, first: int) -> None:
    tokenizer = Counting(base.tokenizer)
    read_messages(chat(first, MOST_TURNS)).tokenize(tokenizer, MEBIBYTE)
    assert tokenizer.messages <= MOST_TURNS**2


def test_a_chat_of_more_turns_is_refused() -> None:
    with pytest.raises(
        ValueError, match=rf"^messages: has {MOST_TURNS + 1} turns, at most {MOST_TURNS}: split"
    ):
        read_messages(chat(1, MOST_TURNS + 1))


@pytest.mark.parametrize(("side", "kept"), [("right", "first"), ("left", "last")])
def test_labelled_text_is_cut_like_its_tokenizer(base: SharedBase, side: str, kept: str) -> None:
    tokenizer = Counting(base.tokenizer, truncation_side=side)
    sequence = labelled("first " * BOUND + "last " * BOUND).tokenize(tokenizer, LENGTH)
    assert kept in tokenizer.decode(sequence.token_ids)
    assert tokenizer.characters == BOUND


def test_a_completion_that_is_cut_is_not_closed(base: SharedBase) -> None:
    class Sparse(Counting):
        def encode(self, text: str, **how: Any) -> list[int]:
            return super().encode(text, **how)[:: 2 * CHARACTERS_PER_TOKEN]

    cut = TextRecord("say", "a" * MEBIBYTE).tokenize(Sparse(base.tokenizer), LENGTH)
    assert len(cut.token_ids) < LENGTH
    assert cut.token_ids[-1] != base.tokenizer.eos_token_id
    whole = TextRecord("say", "a" * BOUND).tokenize(Sparse(base.tokenizer), LENGTH)
    assert whole.token_ids[-1] == base.tokenizer.eos_token_id


@given(
    content=st.text("ab \n.é", min_size=1, max_size=300).filter(lambda content: not content.isspace()),
    length=st.integers(2, 40),
    form=st.sampled_from(FORMS),
)
@settings(max_examples=examples(300), deadline=None)
def test_text_within_bound_gives_whole_tokens(base: SharedBase, content: str, length: int, form: Any) -> None:
    tokenizer = Counting(base.tokenizer)
    record = form(content)
    with pytest.MonkeyPatch.context() as patch:
        found = record.tokenize(tokenizer, length)
        patch.setattr("executors.lora.tokens.CHARACTERS_PER_TOKEN", MEBIBYTE)
        assert record.tokenize(tokenizer, length) == found
