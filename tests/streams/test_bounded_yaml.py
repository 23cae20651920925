"""YAML in bounded time: text with an equivalent in JSON is read as PyYAML reads it, and all other gives one
line."""

import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from streams.worker import bounded_yaml
from streams.worker.bounded_yaml import YamlFaultError, read_yaml

DEPTH = 8
# PyYAML writes the text `1e3` without quotes, which is a number in YAML 1.2.
TEXTS = st.text().filter(lambda text: not re.fullmatch("[-+]?[0-9.]+[eE][-+]?[0-9]+", text))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


class _PlainDumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


@given(VALUES, st.booleans())
def test_json_documents_are_read_back(value: Any, flow: bool) -> None:
    text = yaml.dump(value, Dumper=_PlainDumper, default_flow_style=flow)

    document = read_yaml(text, 16)

    assert document is not None
    assert document[0] == value


@given(st.text(alphabet="ab:-[]{}&*!|>'\"%#?,\n \t0x_.~=<@\x00\x85\u2028é", max_size=40))
def test_any_text_is_document_or_fault(text: str) -> None:
    fault = "none"
    try:
        read_yaml(text, DEPTH)
    except YamlFaultError as error:
        fault = str(error)

    assert len(fault.splitlines()) == 1


@pytest.mark.parametrize(
    "text",
    ["yes", "0", "-7", "+12", "0x1F", "1.5e+3", ".5", "01.5", ".inf", "~", "''", "'12'", "'0100'"],
)
def test_scalars_are_those_of_yaml_1_1(text: str) -> None:
    document = read_yaml(text, DEPTH)

    assert document is not None
    assert document[0] == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1e2", 100.0),
        ("1e+3", 1_000.0),
        ("-1.8e3", -1_800.0),
        (".5E1", 5.0),
        ("'1e3'", "1e3"),
        ("1e", "1e"),
        ("e3", "e3"),
    ],
)
def test_exponent_makes_number_as_in_yaml_1_2(text: str, value: float | str) -> None:
    document = read_yaml(text, DEPTH)

    assert document is not None
    assert document[0] == value


def test_date_stays_text() -> None:
    document = read_yaml("{a: 2026-01-01}", DEPTH)

    assert document is not None
    assert document[0] == {"a": "2026-01-01"}


def test_parts_have_their_lines() -> None:
    document = read_yaml("# a remark\n- a: 1\n  b:\n    c: [x,\n      y]\n", DEPTH)

    assert document is not None
    parts: Any = document[1].parts
    (entry,) = parts
    assert (document[1].line, entry.line) == (2, 2)
    nested = entry.parts["b"].parts["c"]
    assert (entry.parts["b"].line, nested.line, [item.line for item in nested.parts]) == (3, 4, [4, 5])


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        pytest.param("a: 1\nb: 0x" + "f" * 5_000, 2, "a number of 5002 characters", id="hexadecimal"),
        pytest.param("a: " + "9" * 5_000, 1, "a number of 5000 characters", id="decimal"),
        pytest.param("a: 1" + ":1" * 1_000_000, 1, "a number of 2000001 characters", id="base 60"),
        pytest.param("a: 1." + "9" * 5_000, 1, "a number of 5002 characters", id="float"),
        pytest.param("!!int ten", 1, "ten is not of type int", id="no int"),
        pytest.param("!!int ''", 1, " is not of type int", id="empty int"),
        pytest.param("!!bool 7", 1, "7 is not of type bool", id="no bool"),
        pytest.param("a: 1\n? [b]\n: c", 2, "a key must be a word", id="key that is a list"),
        pytest.param("a: 1\nb: 2\na: 3", 3, "a is given twice", id="key twice"),
        pytest.param('"\\e[31m": 1\n"\\e[31m": 2', 2, r"'\x1b[31m' is given twice", id="key with an escape"),
        pytest.param("a: 1\n---\nb: 2", 2, "a second document", id="two documents"),
        pytest.param("a\n...\n%TAG ! x\n--- b", 3, "directives", id="directive"),
        pytest.param("a\r%TAG ! x", 1, "directives", id="directive behind a carriage return"),
        pytest.param("!!set {a, b}", 1, "set is not allowed", id="set"),
        pytest.param("a: !!binary aGFsbG8=", 1, "binary is not allowed", id="binary"),
        pytest.param("a: &x [1]\nb: *x", 2, "aliases are not allowed", id="alias"),
        pytest.param("[" * 9 + "]" * 9, 1, "nested deeper than 8", id="deep"),
        pytest.param("a: \x07", None, "not YAML: unacceptable character", id="control character"),
        pytest.param("a: [1\nb", 3, "not YAML: ", id="unfinished"),
    ],
)
def test_what_is_refused_is_named_with_its_line(text: str, line: int | None, message: str) -> None:
    with pytest.raises(YamlFaultError) as refused:
        read_yaml(text, DEPTH)

    assert message in str(refused.value)
    assert refused.value.line == line
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0100", "64"),
        ("0b11", "3"),
        ("1_000", "1000"),
        ("1_000.5", "1000.5"),
        ("1:30", "90"),
        ("1:30.5", "90.5"),
        ("0x1_F", "31"),
        ("!!int '0100'", "64"),
        ("00", "0"),
    ],
)
def test_numbers_of_yaml_1_1_alone_are_refused(text: str, number: str) -> None:
    with pytest.raises(YamlFaultError, match=f"is the number {number} in YAML 1.1 alone") as refused:
        read_yaml(f"a: 1\nb: {text}", DEPTH)

    assert refused.value.line == 2


def test_values_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_yaml, "MAX_VALUES", 10)

    with pytest.raises(YamlFaultError, match="more than 10 values") as refused:
        read_yaml("[1, 2, 3, 4, 5, 6, 7, 8, 9,\n 10]", DEPTH)

    assert refused.value.line == 2


def test_no_document_at_all() -> None:
    assert read_yaml("# nothing\n", DEPTH) is None
