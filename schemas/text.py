"""Escaping of foreign text for a header, a log or a terminal."""

import re

_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Invisible letters and marks that `str.isprintable` accepts (Unicode's Default_Ignorable_Code_Point, and the
blank Braille pattern)."""


def plain(text: str) -> str:
    """Return the text on one line, with every character escaped that is not shown as itself.

    Escaped are control characters, which could command a terminal or forge lines; marks of direction and
    other format characters, which could change the order; separators but the space; surrogates; and
    unassigned characters. Letters of any script stay.
    """
    if _is_plain(text):
        return text
    return "".join(char if _is_plain(char) else char.encode("unicode_escape").decode() for char in text)


def _is_plain(text: str) -> bool:
    return text.isprintable() and _UNSEEN.search(text) is None
