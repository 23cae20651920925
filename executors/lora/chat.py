"""Chat records: a conversation in the base model's own chat template, with the loss on the answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from executors.lora.batch import AnswerSequence
from executors.lora.record_fields import kind_of, refuse_unknown, required_text
from executors.lora.tokens import Tokenizer, tokens_of

ROLES = ("system", "developer", "user", "assistant")
_ANSWERS = "assistant"

Message = dict[str, str]
"""`role` and `content`, as chat templates take them."""


@dataclass(frozen=True)
class ChatRecord:
    """A conversation. The loss is on the turns of the assistant alone."""

    messages: tuple[tuple[str, str], ...]
    """(role, content) of each turn."""

    def tokenize(self, tokenizer: Tokenizer, sequence_length: int) -> AnswerSequence:
        """See `Record`; at least one token bears loss.

        What an answer bears loss on is what the model has to write: from the end of the generation prompt to
        the end of the turn, its end marker included. Each part is tokenised by itself, as a prompt is. A
        conversation that is too long loses the start of what comes before the first answer, then its end.
        """
        ids: list[int] = []
        is_answer: list[bool] = []
        parts = _parts(tokenizer, [{"role": role, "content": content} for role, content in self.messages])
        for text, answers in parts:
            tokens = tokens_of(tokenizer, text) if text else []
            ids += tokens
            is_answer += [answers] * len(tokens)
        if not any(is_answer):
            raise ValueError("messages: no turn of the assistant has a token")
        first = is_answer.index(True)
        last = next(content for role, content in reversed(self.messages) if role == _ANSWERS)
        if not _has_end_marker(last, parts[-1][0]):
            end = tokenizer.eos_token_id
            ids, is_answer = (ids, is_answer) if end is None else ([*ids, end], [*is_answer, True])
        kept_before = max(sequence_length - (len(ids) - first), min(first, 1))
        cut = max(first - kept_before, 0)
        ids, is_answer = ids[cut:][:sequence_length], is_answer[cut:][:sequence_length]
        # The first token of all has nothing before it that could predict it.
        places = tuple(place for place in range(1, len(ids)) if is_answer[place])
        if not places:
            raise ValueError("messages: a conversation of one token leaves nothing to predict")
        return AnswerSequence(ids, places)


def read_messages(messages: object) -> ChatRecord:
    """Read the field `messages`.

    Raises:
        ValueError: it is not a conversation with an answer; the message names the field.
    """
    if not isinstance(messages, list):
        raise ValueError(f"messages: is {kind_of(messages)}, expected an array of turns")
    turns = tuple(_turn(turn, f"messages[{number}]") for number, turn in enumerate(messages))
    if not any(role == _ANSWERS for role, _ in turns):
        raise ValueError("messages: has no turn of the assistant, so that there is nothing to learn")
    return ChatRecord(turns)


def _turn(turn: object, where: str) -> tuple[str, str]:
    if not isinstance(turn, dict):
        raise ValueError(f"{where}: is {kind_of(turn)}, expected an object with role and content")
    role = required_text(turn, "role", f"{where}.")
    if role not in ROLES:
        raise ValueError(f"{where}.role: expected one of {', '.join(ROLES)}")
    refuse_unknown(turn, ("role", "content"), f"{where}.")
    return role, required_text(turn, "content", f"{where}.")


def _parts(tokenizer: Tokenizer, messages: Sequence[Message]) -> list[tuple[str, bool]]:
    """The conversation up to its last answer in pieces of text, each with whether it is an answer.

    Raises:
        ValueError: the tokenizer has no chat template, or the template refuses the conversation.
    """
    whole = _rendered(tokenizer, messages, generates=False)
    parts: list[tuple[str, bool]] = []
    done = 0
    for number, message in enumerate(messages):
        if message["role"] != _ANSWERS:
            continue
        before = _rendered(tokenizer, messages[:number], generates=True) if number else ""
        start = len(before) if whole.startswith(before) else -1
        end = _end_of_answer(tokenizer, messages[: number + 1], whole, start)
        if not done <= start < end:
            raise ValueError(
                f"messages[{number}]: the base model's chat template does not write this turn behind those "
                "before it: give each answer a record of its own"
            )
        parts += [(whole[done:start], False), (whole[start:end], True)]
        done = end
    return [part for part in parts if part[0]]


def _end_of_answer(tokenizer: Tokenizer, until: Sequence[Message], whole: str, start: int) -> int:
    """Where the last turn of `until` ends in the whole conversation, without white space behind its end
    marker; -1 where that is not to be found."""
    alone = _rendered(tokenizer, until, generates=False)
    content = until[-1]["content"].strip()
    at = alone.rfind(content)
    if start < 0 or at < 0:
        return -1
    marker = alone[at + len(content) :]
    closed = content + (marker.rstrip() or marker)
    if whole.startswith(alone):
        return at + len(closed)
    # Some templates write an answer differently, for example without its reasoning, once others follow.
    found = whole.find(closed, start)
    return -1 if found < 0 else found + len(closed)


def _has_end_marker(content: str, text: str) -> bool:
    return not text.rstrip().endswith(content.rstrip())


def _rendered(tokenizer: Tokenizer, messages: Sequence[Message], *, generates: bool) -> str:
    try:
        text: Any = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=generates
        )
    except MemoryError:
        raise
    except Exception as error:
        # Templates are programs, and raise what they like: jinja2's errors, or a TypeError.
        raise ValueError(f"messages: the base model's chat template refuses them: {error}") from error
    if not isinstance(text, str):
        raise ValueError("messages: the base model's chat template gives no text")
    return text
