"""Escaping text from other users for a header, a log or a terminal."""

import re

_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Letters and marks that show nothing, which `str.isprintable` lets pass (Unicode's
Default_Ignorable_Code_Point, and the blank Braille pattern)."""


def plain(text: str) -> str:
    """The text on one line, with every character escaped that is not seen as itself.

    These are control characters, so a terminal is told nothing and no line is forged; marks of direction and
    other format characters, so nothing is shown in another order than it has; separators but the space;
    surrogates; and what is not assigned. Letters of any script stay.
    """
    if _is_plain(text):
        return text
    return "".join(char if _is_plain(char) else char.encode("unicode_escape").decode() for char in text)


def _is_plain(text: str) -> bool:
    return text.isprintable() and _UNSEEN.search(text) is None
