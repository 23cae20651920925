"""The reference vendor's pre-processing: lines in, lines out."""

import json
from hashlib import blake2b
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executors.lora.record_fields import MAX_RECORD_BYTES
from infra.vendor.preparation import Counts, LengthLimits, Preparation, StoppedError, UnfitDataError
from schemas.lora import Columns, Dataset, PromptColumns, TextColumns
from tests.support.examples import examples

TARGET = "prepared/c/v/0/j.jsonl"


def prepared(
    root: Path, content: bytes, columns: Columns | None = None, least: int = 1, **limits: int
) -> tuple[list[bytes], Counts | None]:
    """Lines that are kept of a file, and the counts."""
    (root / "d.jsonl").write_bytes(content)
    dataset = Dataset(path="d.jsonl", samples=1_000, columns=columns)
    delivery, counts = Preparation(root, LengthLimits(**limits)).prepare(dataset, least, TARGET)
    made = (root / TARGET).read_bytes()
    assert delivery.digest == blake2b(made, digest_size=32).hexdigest()
    assert (delivery.path, delivery.size_bytes) == (TARGET, len(made))
    lines = made.splitlines()
    assert delivery.samples == len(lines)
    return lines, counts


def fault(root: Path, content: bytes | None, samples: int = 10, least: int = 1) -> str:
    if content is not None:
        (root / "d.jsonl").write_bytes(content)
    with pytest.raises(UnfitDataError) as raised:
        Preparation(root, LengthLimits()).prepare(Dataset(path="d.jsonl", samples=samples), least, TARGET)
    assert not [path for path in root.rglob("*") if path.is_file() and path.name != "d.jsonl"]
    return raised.value.reason


def test_duplicates_and_bad_lines_are_counted_and_dropped(tmp_path: Path) -> None:
    lines = [
        b'{"text": "one"}',
        b"",
        b'{ "text":"one" }',
        b'{"text": "two"}\r',
        b"not json",
        b'["text"]',
        b'{"text": "\xff"}',
        b'{"text": ""}',
        b'{"text": "' + b"x" * MAX_RECORD_BYTES + b'"}',
        b'{"text": "\\ud83d"}',
        b'{"text": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"text": ' + b"[" * 100_000,
        b'{"text": "three"}',
    ]
    kept, counts = prepared(tmp_path, b"\n".join(lines))
    assert kept == [b'{"text": "one"}', b'{"text": "two"}', b'{"text": "three"}']
    assert counts == Counts(read=12, kept=3, duplicates=1, invalid=6, unfit=2)


def test_length_bounds_count_all_texts_of_a_record(tmp_path: Path) -> None:
    content = b'{"prompt": "ab", "completion": "c"}\n{"prompt": "a", "completion": "b"}\n{"prompt": "abcd"}\n'
    kept, _ = prepared(tmp_path, content, least_characters=3, most_characters=3)
    assert kept == [b'{"prompt": "ab", "completion": "c"}']


def test_named_columns_alone_count(tmp_path: Path) -> None:
    content = b'{"q": "a", "a": "b", "note": ""}\n{"q": "a", "note": "long"}\n{"q": " ", "a": "b"}\n'
    kept, _ = prepared(tmp_path, content, PromptColumns(prompt="q", completion="a"))
    assert kept == [b'{"q": "a", "a": "b", "note": ""}']


def test_label_may_be_a_number(tmp_path: Path) -> None:
    kept, _ = prepared(tmp_path, b'{"t": "a", "l": 0}\n', TextColumns(text="t", label="l"))
    assert kept == [b'{"t": "a", "l": 0}']


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "data_missing"),
        (b"", "data_unreadable"),
        (b"no\njson\n", "data_unreadable"),
        (b'{"text": ""}\n', "too_little_left"),
        (b'{"text": "a"}\n' * 5, "too_little_left"),
        (b'{"text": "a"}\n' * 11, "more_data_than_ordered"),
    ],
    ids=["missing", "empty", "no JSON", "empty records", "duplicates", "too many"],
)
def test_unfit_data_are_refused(tmp_path: Path, content: bytes | None, reason: str) -> None:
    assert fault(tmp_path, content, least=2) == reason


def test_files_outside_of_the_root_are_missing(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_text('{"text": "a"}\n')
    (root / "d.jsonl").symlink_to(tmp_path / "secret")
    with pytest.raises(UnfitDataError) as raised:
        Preparation(root, LengthLimits()).prepare(Dataset(path="d.jsonl", samples=1), 1, TARGET)
    assert raised.value.reason == "data_missing"


@pytest.mark.parametrize("path", ["x" * 300, "loop", "d.jsonl/under", "folder"])
def test_paths_of_no_file_are_missing(tmp_path: Path, path: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "d.jsonl").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(UnfitDataError) as raised:
        Preparation(tmp_path, LengthLimits()).prepare(Dataset(path=path, samples=1), 1, TARGET)
    assert raised.value.reason == "data_missing"


def test_second_preparation_returns_the_first_file(tmp_path: Path) -> None:
    prepared(tmp_path, b'{"text": "a"}\n')
    kept, counts = prepared(tmp_path, b'{"text": "another"}\n')
    assert kept == [b'{"text": "a"}']
    assert counts is None


def test_token_counts_are_in_another_file(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text('{"a": "one two", "b": "three"}\n{"a": "four"}\n')
    preparation = Preparation(tmp_path, LengthLimits(), lambda text: len(text.split()))
    preparation.prepare(Dataset(path="d.jsonl", samples=2), 1, TARGET)
    assert json.loads((tmp_path / f"{TARGET}.tokens").read_text()) == [3, 1]


def test_stop_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text("".join(f'{{"text": "{number}"}}\n' for number in range(2_000)))
    stopped = Preparation(tmp_path, LengthLimits(), is_stopped=lambda: True)
    with pytest.raises(StoppedError):
        stopped.prepare(Dataset(path="d.jsonl", samples=2_000), 1, TARGET)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["d.jsonl"]


@settings(max_examples=examples(300), deadline=None, derandomize=True, database=None)
@given(st.lists(st.binary(max_size=12) | st.sampled_from([b'{"text": "a"}', b'{"b": ["c"]}', b'{"d": 1}'])))
def test_any_bytes_are_prepared_or_refused(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    root = tmp_path_factory.mktemp("root")
    try:
        kept, counts = prepared(root, b"\n".join(lines))
    except UnfitDataError:
        return
    assert counts is not None
    assert counts.read == counts.kept + counts.duplicates + counts.invalid + counts.unfit
    assert len({json.dumps(json.loads(line), sort_keys=True) for line in kept}) == len(kept)
