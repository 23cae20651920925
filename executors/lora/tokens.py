"""The part of a tokenizer that records need."""

from typing import Any, Protocol

CHARACTERS_PER_TOKEN = 64
"""Most characters of a record that are tokenised for each token of the sequence length.

Ordinary text has 1 to 6 characters per token, and the longest tokens of common vocabularies are runs of 64 to
128 equal characters. A record may have a million characters, and only a sequence of it is used: without a
bound, the steps that its task shares with others would wait for tokens that are dropped.
"""


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is needed here."""

    eos_token_id: int | None
    truncation_side: str
    """`right` or `left`: the end at which `encode` cuts a text that is too long."""

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool,
        truncation: bool = False,
        max_length: int | None = None,
    ) -> list[int]: ...

    def apply_chat_template(
        self, conversation: list[dict[str, str]], /, *, tokenize: bool, add_generation_prompt: bool
    ) -> Any: ...


def tokens_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of a text, without special tokens around it."""
    return tokenizer.encode(text, add_special_tokens=False)


def characters_for(tokens: int) -> int:
    """Return the most characters that are tokenised to get a number of tokens."""
    return tokens * CHARACTERS_PER_TOKEN


def beginning(text: str, tokens: int) -> str:
    """Return the part to tokenise of a text of which the first tokens are kept."""
    return text[: characters_for(tokens)]


def ending(text: str, tokens: int) -> str:
    """Return the part to tokenise of a text of which the last tokens are kept, at least one."""
    return text[-characters_for(tokens) :]
