"""Chat records: a conversation in the base model's own chat template, with the loss on the answers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from executors.lora.batch import AnswerSequence
from executors.lora.record_fields import kind_of, optional_text, refuse_unknown, required_text
from executors.lora.tokens import Tokenizer, characters_for, ending, tokens_of

ROLES = ("system", "developer", "user", "assistant")
_ANSWERS = "assistant"
_MAY_BE_EMPTY = ("system", "developer")
"""Roles whose turns may be empty: templates write a system turn without content, instead of their default
one."""
MOST_TURNS = 256
"""Most turns of a conversation. For each answer, the turns before it are rendered twice, while all tasks of
its node wait."""
_PLACEHOLDERS = "\u2588\u2593"
"""Substitutes for the content of an answer."""

Message = dict[str, str]
"""`role` and `content`, as in chat templates."""


@dataclass(frozen=True)
class ChatRecord:
    """A conversation with loss on the turns of the assistant only."""

    messages: tuple[tuple[str, str], ...]
    """(role, content) of each turn."""

    def tokenize(self, tokenizer: Tokenizer, sequence_length: int) -> AnswerSequence:
        """See `Record`; at least one token bears loss.

        The loss of an answer covers the tokens that the model writes: from the end of the generation prompt
        to the end of the turn, including its end marker. If no turn precedes it, or the template does not
        begin given answers with that prompt, it starts at the answer's content. Each part is tokenised
        separately, like a prompt. A conversation that is too long loses the start of the part before the
        first answer, then its end.
        """
        pieces = self._pieces(tokenizer, sequence_length)
        ids = [token for tokens, _ in pieces for token in tokens]
        is_answer = [answers for tokens, answers in pieces for _ in tokens]
        if not any(is_answer):
            raise ValueError("messages: no turn of the assistant has a token")
        first = is_answer.index(True)
        kept_before = max(sequence_length - (len(ids) - first), min(first, 1))
        cut = max(first - kept_before, 0)
        ids, is_answer = ids[cut:][:sequence_length], is_answer[cut:][:sequence_length]
        # The first token of all has no token before it to predict it from.
        places = tuple(place for place in range(1, len(ids)) if is_answer[place])
        if not places:
            raise ValueError("messages: a conversation of one token leaves nothing to predict")
        return AnswerSequence(ids, places)

    def _pieces(self, tokenizer: Tokenizer, sequence_length: int) -> list[tuple[list[int], bool]]:
        """Return the tokens of the conversation in pieces, each with whether it is an answer: only as many as
        the sequence may need."""
        offset, turns = self._used_turns(sequence_length)
        pieces: list[tuple[list[int], bool]] = []
        room, missing = characters_for(sequence_length), sequence_length
        text = ""
        for text, answers in _parts(tokenizer, turns, offset):
            if not pieces and not answers:
                pieces.append((tokens_of(tokenizer, ending(text, sequence_length)), False))
                continue
            tokens = tokens_of(tokenizer, text[:room])
            pieces.append((tokens, answers))
            room, missing = room - len(text), missing - len(tokens)
            if room < 0 or missing <= 0:
                return pieces
        is_whole = offset + len(turns) == len(self.messages)
        last = next(message["content"] for message in reversed(turns) if message["role"] == _ANSWERS)
        if is_whole and tokenizer.eos_token_id is not None and not _has_end_marker(last, text):
            pieces.append(([tokenizer.eos_token_id], True))
        return pieces

    def _used_turns(self, sequence_length: int) -> tuple[int, list[Message]]:
        """Return the number of the first turn that may be used, and the turns from there on. Each has at
        least one token, so the others have none in the sequence."""
        first = next(number for number, (role, _) in enumerate(self.messages) if role == _ANSWERS)
        start = max(first - sequence_length, 0)
        used = self.messages[start : first + sequence_length + 1]
        return start, [{"role": role, "content": content} for role, content in used]


def read_messages(messages: object) -> ChatRecord:
    """Read the field `messages`.

    Raises:
        ValueError: it is not a conversation with an answer; the message names the field.
    """
    if not isinstance(messages, list):
        raise ValueError(f"messages: is {kind_of(messages)}, expected an array of turns")
    if len(messages) > MOST_TURNS:
        raise ValueError(f"messages: has {len(messages)} turns, at most {MOST_TURNS}: split the conversation")
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
    if role in _MAY_BE_EMPTY and optional_text(turn, "content", f"{where}.") == "":
        return role, ""
    content = required_text(turn, "content", f"{where}.")
    if role == _ANSWERS and content.isspace():
        raise ValueError(f"{where}.content: has only white space, so that there is nothing to learn")
    return role, content


def _parts(tokenizer: Tokenizer, messages: Sequence[Message], offset: int = 0) -> Iterator[tuple[str, bool]]:
    """Yield the conversation up to its last answer in pieces of text, each with whether it is an answer. The
    search for an answer runs when its piece is requested.

    Args:
        offset: number of the first message in errors.

    Raises:
        ValueError: the tokenizer has no chat template, or the template refuses the conversation.
    """
    whole = _rendered(tokenizer, messages, generates=False)
    done = 0
    for number, message in enumerate(messages):
        if message["role"] != _ANSWERS:
            continue
        start = _start_of_answer(tokenizer, messages[: number + 1], whole)
        end = _end_of_answer(tokenizer, messages[: number + 1], whole, start)
        if not done <= start < end:
            is_only = [each["role"] for each in messages].count(_ANSWERS) == 1
            raise ValueError(
                f"messages[{offset + number}]: the base model's chat template does not write this turn "
                + (
                    "as it is given"
                    if is_only
                    else "behind those before it: give each answer a record of its own"
                )
            )
        if done < start:
            yield whole[done:start], False
        yield whole[start:end], True
        done = end


def _start_of_answer(tokenizer: Tokenizer, until: Sequence[Message], whole: str) -> int:
    """Return the start, in the whole conversation, of the text that the model writes in the last turn of
    `until`; -1 if it is not found."""
    if len(until) > 1:
        prompt = _rendered(tokenizer, until[:-1], generates=True)
        if whole.startswith(prompt):
            return len(prompt)
    # Some prompts open the reasoning, which templates leave out of given answers.
    content = until[-1]["content"]
    other = next((each for each in _PLACEHOLDERS if each not in content), "")
    given, replaced = (
        _rendered(tokenizer, [*until[:-1], {"role": _ANSWERS, "content": each}], generates=False)
        for each in (content, other)
    )
    start = _shared_start(given, replaced)
    return start if start < len(given) and whole.startswith(given[:start]) else -1


def _shared_start(one: str, another: str) -> int:
    """Return the number of characters of the common prefix of two texts, by bisection."""
    shared, end = 0, min(len(one), len(another))
    while shared < end:
        middle = (shared + end + 1) // 2
        if one[shared:middle] == another[shared:middle]:
            shared = middle
        else:
            end = middle - 1
    return shared


def _end_of_answer(tokenizer: Tokenizer, until: Sequence[Message], whole: str, start: int) -> int:
    """Return the end of the last turn of `until` in the whole conversation, without white space behind its
    end marker; -1 if it is not found."""
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
        # Templates are programs, and may raise anything: jinja2's errors, or a TypeError.
        raise ValueError(f"messages: the base model's chat template refuses them: {error}") from error
    if not isinstance(text, str):
        raise ValueError("messages: the base model's chat template gives no text")
    return text
