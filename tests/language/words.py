"""Rules of the language of code, pages and tests, which `docs/glossary.md` explains."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

OPENINGS = (
    "What", "Of", "Whose", "Who", "Whom", "That", "Those", "These", "So", "Which", "How", "Why", "The same"
)  # fmt: skip
"""A docstring begins with a verb or a noun."""

REPLACED = {
    "hear": "receive, read",
    "tell": "report, send, state",
    "say": "state, report, show",
    "know": "keep, have",
    "mourn": "end",
    "bury": "remove",
    "fare": "progress",
    "believe": "count as",
    "foretell": "forecast",
    "want": "request, need",
    "anew": "again",
    "amid": "during",
    "lest": "so that ... not",
    "beside": "besides, next to",
    "whom": "a noun",
    "nobody": "no user, no process",
    "somebody": "a user, a process",
    "teach": "pass, train",
    "lodger": "borrower",
    "stranger": "unknown process, other user",
    "forgive": "tolerate, allow",
    "is none": "is invalid",
    "are none": "are invalid",
}
"""Words of people for machines, and old ones, each with what it may be replaced by."""

GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"


def glossary_words(page: str) -> dict[str, str]:
    """Return the replaced words in bold of the glossary, each with the term of its row."""
    rows = [row.split("|") for row in page.splitlines() if row.startswith("| ")]
    return {word: row[1].strip() for row in rows for word in re.findall(r"\*\*(.+?)\*\*", row[3])}


EMPTY_VERBS = ("do", "handle", "manage", "perform", "process", "take")
"""Verbs without content, by which no method of an interface begins."""

REPLACED_IN_NAMES = {"take": "apply, claim, use, read", "remember": "record, keep"}
"""Words without content, which are replaced in names; in sentences they have uses."""

STORED_NAMES = {
    "JobForetold", "believed_part", "beside", "foretold", "foretold_gain", "foretold_iterations",
    "is_foretold", "remembered_slots", "takes_profiles",
}  # fmt: skip
"""Names of records, settings and facts, and of fields that have their values."""

USED_IN_NAMES = {"alive", "is none"}
"""Replaced words that have another meaning in names: that of processes, and that of Python's `None`."""

MOST_WORDS = 8
"""Most words of a test's name after `test_`."""

_FORMS = {
    "hear": "hear|hears|heard|hearing",
    "tell": "tell|tells|told|telling",
    "say": "say|says|said|saying",
    "know": "know|knows|knew|knowing",
    "judge": "(?:un)?judg(?:e|es|ed|ing|able|eable|ment|ement)s?",
    "team": "teams?",
    "mourn": "mourn|mourns|mourned",
    "bury": "bury|buries|buried",
    "fare": "fare|fares|fared",
    "believe": "believe|believes|believed",
    "foretell": "foretell|foretells|foretold|foretelling",
    "want": "want|wants|wanted",
    "teach": "teach|teaches|taught|teaching",
    "lodger": "lodgers?",
    "stranger": "strangers?",
    "forgive": "forgives?|forgave|forgiven|forgiving",
    "take": "take|takes|took|taken|taking|taker|takers",
    "remember": "remember|remembers|remembered|remembering",
}
_ALL_REPLACED = glossary_words(GLOSSARY.read_text(encoding="utf-8")) | REPLACED
_PATTERNS = {word: re.compile(rf"\b(?:{_FORMS.get(word, word)})\b", re.IGNORECASE) for word in _ALL_REPLACED}
_NAME_PATTERNS = {word: pattern for word, pattern in _PATTERNS.items() if word not in USED_IN_NAMES}
_CODE_NAME_PATTERNS = _NAME_PATTERNS | {
    word: re.compile(rf"\b(?:{_FORMS[word]})\b", re.IGNORECASE) for word in REPLACED_IN_NAMES
}
"""The patterns of all names but those of tests, which are sentences."""
_EMPTY_WORDS = [
    "a",
    "an",
    "and",
    "by",
    "for",
    "in",
    "is",
    "it",
    "its",
    "of",
    "on",
    "one",
    "return",
    "returns",
    "that",
    "the",
    "this",
    "to",
    "whether",
    "with",
]
_ENDING = re.compile(r"(?<=\w{3})(ing|ied|ies|ed|es|s|e|y|d)$")
_REPLACEMENTS = _ALL_REPLACED | REPLACED_IN_NAMES
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`]*`")
"""Quoted names, such as a field of a schema, whose words are not those of a sentence."""
_BRACES = re.compile(r"\{[^}]*\}")


class Fault(NamedTuple):
    """A place whose words break a rule."""

    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


def faults(path: Path, root: Path) -> Iterator[Fault]:
    """Yield the faults of a file's docstrings and comments."""
    source, name = path.read_text(encoding="utf-8"), str(path.relative_to(root))
    for line, text in docstrings(ast.parse(source)):
        first = text.strip().split("\n")[0]
        for opening in OPENINGS:
            if re.match(rf"{opening}\b", first):
                yield Fault(name, line, f"a docstring begins with {opening!r}", first)
        yield from _replaced(name, line, text)
    for line, text in comments(source):
        yield from _replaced(name, line, text)


def page_faults(path: Path, root: Path) -> Iterator[Fault]:
    """Yield the faults of a page's prose, or of a file of settings: all but the code in blocks or lines."""
    text = _FENCED.sub(lambda block: "\n" * block[0].count("\n"), path.read_text(encoding="utf-8"))
    for line, words in enumerate(text.split("\n"), 1):
        yield from _replaced(str(path.relative_to(root)), line, words)


def name_faults(path: Path, root: Path) -> Iterator[Fault]:
    """Yield the faults of a file's own name and of its names; those of tests are also short."""
    place = str(path.relative_to(root))
    patterns = _NAME_PATTERNS if path.stem.startswith("test_") else _CODE_NAME_PATTERNS
    yield from _replaced(place, 1, " ".join(_PART.findall(path.stem)), patterns)
    for line, name in names(ast.parse(path.read_text(encoding="utf-8"))):
        is_test = name.startswith("test_")
        if is_test and len(name.split("_")) > MOST_WORDS + 1:
            yield Fault(place, line, f"a test has at most {MOST_WORDS} words", name)
        if name not in STORED_NAMES:
            patterns = _NAME_PATTERNS if is_test else _CODE_NAME_PATTERNS
            yield from _replaced(place, line, " ".join(_PART.findall(name)), patterns)


def local_faults(path: Path, root: Path) -> Iterator[Fault]:
    """Yield the faults of the variables of a file's functions and comprehensions."""
    place = str(path.relative_to(root))
    for line, name in local_names(ast.parse(path.read_text(encoding="utf-8"))):
        yield from _replaced(place, line, " ".join(_PART.findall(name)), _CODE_NAME_PATTERNS)


def local_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the names that a file binds, with their lines: all but the fields of classes and the parameters.

    These are assigned names, and those of loops, comprehensions, patterns, `with` and `except`.
    """
    fields = {
        field for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for field in _assigned(node.body)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) if (node.lineno, name) not in fields:
                yield node.lineno, name
            case (
                ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.MatchMapping(rest=str(name))
                | ast.ExceptHandler(name=str(name))
            ):
                yield node.lineno, name


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the names that a file gives, with their lines: all but those of local variables."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.ClassDef(name=name):
                yield node.lineno, name
                yield from _assigned(node.body)
            case ast.arg(arg=name) | ast.alias(asname=str(name)):
                yield node.lineno, name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
    yield from _assigned(tree.body)


def _assigned(body: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    for statement in body:
        match statement:
            case ast.Assign(targets=targets):
                found = [target.id for target in targets if isinstance(target, ast.Name)]
                yield from ((statement.lineno, name) for name in found)
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield statement.lineno, name


def repetitions(path: Path, root: Path) -> Iterator[Fault]:
    """Yield the docstrings of functions and classes that have no word besides their names and types."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            text = ast.get_docstring(node) or ""
            known = [node.name, *_EMPTY_WORDS]
            if not isinstance(node, ast.ClassDef):
                known += [ast.unparse(node.args), ast.unparse(node.returns) if node.returns else ""]
            if text and "\n" not in text and _stems(text) <= _stems(" ".join(known)):
                yield Fault(str(path.relative_to(root)), node.lineno, "a docstring repeats the name", text)


def _stems(text: str) -> set[str]:
    return {_ENDING.sub("", part.lower()) for part in _PART.findall(text)}


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the docstrings of a module, its classes, functions and attributes, with their first lines."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def string_faults(path: Path, root: Path) -> Iterator[Fault]:
    """Yield the faults of a file's strings: those with a space, without the names in their braces."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for line, text in strings(tree):
        if " " in text:
            yield from _replaced(str(path.relative_to(root)), line, _BRACES.sub("", text))


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the strings of a file but its docstrings, with their lines; of f-strings, the constant text."""
    parts = set()
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant() as docstring):
                parts.add(docstring)
            case ast.JoinedStr(values=values):
                parts.update(values)
                texts = (str(value.value) for value in values if isinstance(value, ast.Constant))
                yield node.lineno, "".join(texts)
            case ast.Constant(value=str(text)) if node not in parts:
                yield node.lineno, text


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments of a file with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(("# noqa", "# type", "# fmt")):
            yield token.start[0], token.string


def _replaced(
    path: str, line: int, text: str, patterns: Mapping[str, re.Pattern[str]] = _PATTERNS
) -> Iterator[Fault]:
    words = _CODE.sub("", text)
    for word, pattern in patterns.items():
        for match in pattern.finditer(words):
            around = " ".join(words[max(match.start() - 30, 0) : match.end() + 30].split())
            yield Fault(path, line, f"{word!r} is replaced by {_REPLACEMENTS[word]}", around)
