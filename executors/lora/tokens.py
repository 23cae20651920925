"""The part of a tokenizer that records need."""

from typing import Any, Protocol


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is needed here."""

    eos_token_id: int | None

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
    """A text in tokens, without special tokens around it."""
    return tokenizer.encode(text, add_special_tokens=False)
