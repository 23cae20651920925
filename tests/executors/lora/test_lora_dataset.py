"""Datasets come from below the root only, fail early and clearly, and resume exactly."""

import copy
import gzip
import json
import os
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executors.lora import dataset
from executors.lora.dataset import (
    Cursor,
    DatasetError,
    DatasetIndex,
    DatasetRoot,
    FileIdentity,
    RecentIndices,
    next_indices,
)
from executors.lora.engine import FusedEngine
from executors.lora.record_fields import read_json
from executors.lora.records import (
    DatasetRecord,
    LabelledRecords,
    RecordForm,
    TextRecord,
    TextRecords,
    with_columns,
)
from executors.lora.shared_base import SharedBase
from executors.moe.serving.requests import Prompts
from schemas.lora import ChatColumns, TextColumns
from tests.support.examples import examples


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    (folder / "good.jsonl").write_text('{"text": "inside"}\n')
    (tmp_path / "secret.jsonl").write_text('{"text": "outside"}\n')
    return folder


@pytest.mark.parametrize(
    "name",
    [
        "../secret.jsonl",
        "sub/../../secret.jsonl",
        "sub/../good.jsonl",
        "/etc/passwd",
        "good.jsonl\0.txt",
        "link.jsonl",
        "linked-folder/secret.jsonl",
        "loop",
        "missing.jsonl",
        "sub",
        ".",
        "pipe",
        "x" * 5000,
    ],
)
def test_name_outside_root_or_without_file_is_refused(root: Path, name: str) -> None:
    (root / "sub").mkdir()
    (root / "link.jsonl").symlink_to(root.parent / "secret.jsonl")
    (root / "linked-folder").symlink_to(root.parent)
    (root / "loop").symlink_to(root / "loop")
    os.mkfifo(root / "pipe")
    with pytest.raises(DatasetError):
        DatasetRoot(root).open(name)


def test_sibling_of_root_is_outside(root: Path) -> None:
    (root.parent / "root-2").mkdir()
    (root.parent / "root-2" / "data.jsonl").write_text('{"text": "outside"}\n')
    (root / "link").symlink_to(root.parent / "root-2")
    with pytest.raises(DatasetError, match="leads out"):
        DatasetRoot(root).open("link/data.jsonl")


def test_links_inside_root_are_valid(root: Path) -> None:
    (root / "alias.jsonl").symlink_to(root / "good.jsonl")
    (root.parent / "root-link").symlink_to(root)
    with DatasetRoot(root.parent / "root-link").open("alias.jsonl") as dataset:
        assert dataset[0] == TextRecord("", "inside")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON that can be read: it is nested too deeply"),
        ('{"text": ' * 50_000, "not JSON that can be read: it is nested too deeply"),
        ("\xff", "not UTF-8: byte 0xff at position 1: save the file as UTF-8"),
        ('{"text": "\xed\xa0\xbd"}', "not UTF-8: byte 0xed at position 11"),
        ('{"text": "a\0b"}', "has a NUL byte"),
        ("[]", r'is an array, expected a JSON object such as {"text"'),
        ('"text"', "is a string, expected a JSON object"),
        ("null", "is null, expected a JSON object"),
        ("{}", r'expected {"text": ...}, .*; the fields are: none'),
        ('{"txt": "a"}', "expected .*; the fields are: txt"),
        ('{"text": 3}', "text: is a number, expected a string"),
        ('{"text": true}', "text: is true or false, expected a string"),
        ('{"text": null}', "text: is null, expected a string"),
        ('{"text": ""}', "text: is empty"),
        (
            '{"text": "Thanks a lot \\ud83d"}',
            r"text: has half of a surrogate pair \(\\ud83d\) at character 14",
        ),
        ('{"text": "\\udc00\\ud83d"}', r"text: has half of a surrogate pair \(\\udc00\) at character 1"),
        ('{"text": "a\\u0000"}', "text: has a NUL character .* at character 2"),
        ('{"text": "a", "text": "b"}', "text: is given twice"),
        ('{"text": NaN}', "not JSON: NaN is not a JSON number"),
        ('{"text": -Infinity}', "not JSON: -Infinity is not a JSON number"),
        ('{"text": ' + "9" * 5_000 + "}", "has a number of 5000 digits"),
        (
            '{"id": 0, "text": "a"}',
            "id: unknown field: remove it, or name the fields to read in dataset.columns",
        ),
        ('{"text": "a", "prompt": "b", "completion": "c"}', "text: unknown field"),
        ('{"text": "a", "label": 1}', "label: expected"),
        ('{"prompt": "a"}', "completion: is missing"),
        ('{"completion": "a"}', "prompt: is missing"),
        ('{"prompt": null, "completion": "x"}', "prompt: is null, expected a string"),
        ('{"prompt": "a", "completion": ""}', "completion: is empty"),
        ('{"instruction": "a", "input": "b"}', "output: is missing"),
        ('{"instruction": "a", "input": 7, "output": "b"}', "input: is a number, expected a string"),
        ('{"messages": []}', "messages: the base model's tokenizer has no chat template"),
        ('{"text": "' + "a" * (1 << 20) + '"}', "longer than 1048576 bytes"),
    ],
)
def test_a_bad_line_is_named_before_training_begins(root: Path, line: str, problem: str) -> None:
    text = '{"text": "fine"}\n\n' + line + "\n"
    (root / "bad.jsonl").write_bytes(text.encode("latin-1"))
    with pytest.raises(DatasetError, match=rf"^bad\.jsonl, line 3: {problem}"):
        DatasetRoot(root).open("bad.jsonl")


TEXT_LINE = '{"text": "def f0(x):"}\n'


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'[\n {"text": "a b c"}\n]', "is a JSON array: write one JSON object on each line"),
        (b'[{"text": "a b c"}]', "is a JSON array: write one JSON object on each line"),
        (TEXT_LINE.encode("utf-16"), "is UTF-16: save it as UTF-8"),
        (TEXT_LINE.encode("utf-16-be"), "is UTF-16: save it as UTF-8"),
        (TEXT_LINE.encode("utf-16-le"), "is UTF-16: save it as UTF-8"),
        (TEXT_LINE.encode("utf-32"), "is UTF-32: save it as UTF-8"),
        (TEXT_LINE.encode("utf-32-be"), "is UTF-32: save it as UTF-8"),
        (TEXT_LINE.encode("utf-32-le"), "is UTF-32: save it as UTF-8"),
        (b"\0\0\xfe\xff" + TEXT_LINE.encode("utf-32-be"), "is UTF-32: save it as UTF-8"),
        (TEXT_LINE.encode("utf-8-sig"), "begins with a byte order mark: save it as UTF-8 without one"),
        (b"PK\x03\x04", "is a ZIP archive: unpack it"),
        (gzip.compress(TEXT_LINE.encode(), mtime=0), "is compressed: unpack it"),
    ],
)
def test_file_of_other_format_names_remedy(root: Path, content: bytes, problem: str) -> None:
    (root / "other.jsonl").write_bytes(content)
    with pytest.raises(DatasetError, match=f"^other\\.jsonl: {problem}$"):
        DatasetRoot(root).open("other.jsonl")


GOOD_LINES = [
    b'{"text": "def f(x):\\n    return x"}',
    b'{"prompt": "sky", "completion": "blue \xf0\x9f\x98\x80 \\ud83d\\ude00"}',
    b'{"instruction": "add", "input": "1 2", "output": "3"}',
    b'{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}',
]
PIECES = [
    *(b"\0", b"\xff", b"\xed\xa0\x80", b"\\ud83d", b"\\u0000", b"NaN", b"null", b"1e999", b"9" * 5_000),
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b",",
        b":",
        b"\n",
        b"\r",
        b"\xef\xbb\xbf",
        b"[" * 3_000,
        b'{"a":' * 3_000,
    ),
    *(b'"text"', b'"messages"', b'"role"', b'"content"', b'"label"', b"true", b"-0.0", b"\\", b""),
]


@given(
    lines=st.lists(st.sampled_from(GOOD_LINES), min_size=1, max_size=4),
    edits=st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 12), st.sampled_from(PIECES) | st.binary(max_size=6)),
        max_size=5,
    ),
    form=st.sampled_from(
        [
            TextRecords(),
            TextRecords(reads_chats=True),
            LabelledRecords(("a", "b"), "last"),
            Prompts(),
            with_columns(TextRecords(reads_chats=True), TextColumns(text="content")),
            with_columns(TextRecords(reads_chats=True), ChatColumns(messages="messages")),
        ]
    ),
)
@settings(max_examples=examples(2_000), deadline=None)
def test_any_file_is_dataset_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    base: SharedBase,
    lines: list[bytes],
    edits: list[tuple[float, int, bytes]],
    form: RecordForm,
) -> None:
    content = b"\n".join(lines)
    for place, deleted, piece in edits:
        at = int(place * len(content))
        content = content[:at] + piece + content[at + deleted :]
    folder = tmp_path_factory.mktemp("mutated")
    (folder / "d.jsonl").write_bytes(content)
    try:
        with DatasetRoot(folder).open("d.jsonl", form=form) as dataset:
            for index in range(len(dataset)):
                assert dataset.tokenized(index, base.tokenizer, 16).token_ids
    except DatasetError as error:
        message = str(error)
        assert message.startswith(("d.jsonl: ", "d.jsonl, line "))
        assert "\n" not in message
        message.encode()


def test_an_object_over_several_lines_is_refused(root: Path) -> None:
    (root / "pretty.jsonl").write_text('\n\n{\n "text": "a"\n}\n')
    with pytest.raises(
        DatasetError, match=r"^pretty\.jsonl, line 3: not JSON: .*one JSON object on each line$"
    ):
        DatasetRoot(root).open("pretty.jsonl")


def test_untokenizable_record_names_its_line(root: Path, base: SharedBase) -> None:
    (root / "one.jsonl").write_text(
        '{"text": "fine"}\n\n{"prompt": "", "completion": "fine"}\n{"text": "x"}\n'
    )
    silent = copy.deepcopy(base.tokenizer)
    silent.eos_token = None
    with (
        DatasetRoot(root).open("one.jsonl") as dataset,
        pytest.raises(DatasetError, match=r"^one\.jsonl, line 4: a record of one token leaves nothing"),
    ):
        dataset.tokenized(2, silent, 16)


class Panicking:
    """A tokenizer whose library gives up, as one in Rust does: with an error that is not an `Exception`."""

    eos_token_id = 0
    PanicException = type("PanicException", (BaseException,), {})

    def __init__(self, error: BaseException | None = None) -> None:
        self._error = error or self.PanicException("slice index out of range")

    def encode(self, text: str, **_: object) -> list[int]:
        raise self._error


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (None, "PanicException: slice index out of range"),
        (TypeError("TextEncodeInput must be"), "TypeError: TextEncodeInput must be"),
    ],
)
def test_tokenizer_error_belongs_to_record(root: Path, error: BaseException | None, problem: str) -> None:
    with (
        DatasetRoot(root).open("good.jsonl") as dataset,
        pytest.raises(DatasetError, match=rf"^good\.jsonl, line 1: cannot be tokenized: {problem}"),
    ):
        dataset.tokenized(0, Panicking(error), 16)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), OSError("disk")])
def test_other_error_is_raised_unchanged(root: Path, error: BaseException) -> None:
    with DatasetRoot(root).open("good.jsonl") as dataset, pytest.raises(type(error)):
        dataset.tokenized(0, Panicking(error), 16)


def test_an_empty_dataset_is_refused(root: Path) -> None:
    (root / "empty.jsonl").write_text("\n \n")
    with pytest.raises(DatasetError, match="has no record"):
        DatasetRoot(root).open("empty.jsonl")


def test_records_are_read_after_file_is_replaced(root: Path) -> None:
    path = root / "data.jsonl"
    path.write_text('{"text": "é"}\n\n{"prompt": "", "completion": "b"}\r\n{"text": "c"}')
    dataset = DatasetRoot(root).open("data.jsonl")
    path.unlink()
    path.write_text('{"text": "new"}\n')
    assert [dataset[i] for i in (2, 0, 1)] == [TextRecord("", "c"), TextRecord("", "é"), TextRecord("", "b")]
    assert len(dataset) == 3
    dataset.close()


@given(
    record_count=st.integers(1, 30),
    seed=st.integers(0, 100),
    counts=st.lists(st.integers(1, 50), min_size=1, max_size=8),
)
def test_parts_equal_whole_and_epochs_are_complete(record_count: int, seed: int, counts: list[int]) -> None:
    at_once, end = next_indices(record_count, seed, Cursor(), sum(counts))
    in_parts, cursor = [], Cursor()
    for count in counts:
        indices, cursor = next_indices(record_count, seed, cursor, count)
        in_parts += indices
    assert (in_parts, cursor) == (at_once, end)
    for epoch in range(len(at_once) // record_count):
        assert sorted(at_once[epoch * record_count :][:record_count]) == list(range(record_count))


def test_epochs_and_tasks_are_shuffled_differently() -> None:
    two_epochs, _ = next_indices(50, 1, Cursor(), 100)
    other_seed, _ = next_indices(50, 2, Cursor(), 50)
    assert two_epochs[:50] != two_epochs[50:]
    assert two_epochs[:50] != other_seed


def test_loss_is_on_the_completion_and_its_end(base: SharedBase) -> None:
    prompt, completion = base.tokenizer.encode("def f"), base.tokenizer.encode("(): return 1")
    sequence = TextRecord("def f", "(): return 1").tokenize(base.tokenizer, sequence_length=64)
    assert sequence.token_ids == [*prompt, *completion, base.tokenizer.eos_token_id]
    assert sequence.loss_start == len(prompt)


@given(prompt=st.text(max_size=40), completion=st.text(min_size=1, max_size=40), length=st.integers(2, 50))
def test_any_record_fits_and_bears_loss(base: SharedBase, prompt: str, completion: str, length: int) -> None:
    sequence = TextRecord(prompt, completion).tokenize(base.tokenizer, length)
    assert 2 <= len(sequence.token_ids) <= length
    assert 1 <= sequence.loss_start < len(sequence.token_ids)
    assert sequence.loss_tokens >= 1


def test_line_of_many_names_is_scanned_once() -> None:
    names = [f"n{number}" for number in range(100_000)]
    # Looked through once for each name, it would take longer than the test may.
    line = json.dumps(dict.fromkeys(names, 1))[:-1] + f', "{names[-1]}": 1}}'
    with pytest.raises(ValueError, match=f"^{names[-1]}: is given twice"):
        read_json(line.encode())


def test_unchanged_file_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b"}\n')
    indices, read = RecentIndices(), list[int]()

    class Counted(TextRecords):
        def parse(self, fields: object) -> DatasetRecord:
            read.append(1)
            return super().parse(fields)

    def opened() -> list[int]:
        read.clear()
        with DatasetRoot(tmp_path).open("d.jsonl", indices.find, Counted()) as dataset:
            indices.keep(dataset.identity, Counted(), dataset.index)
            return [len(dataset), len(read)]

    assert [opened(), opened()] == [[2, 2], [2, 0]]
    path.write_text('{"text": "a"}\n{"text": "b"}\n{"text": "c"}\n')
    assert [opened(), opened()] == [[3, 3], [3, 0]]


def test_indices_are_kept_by_latest_use() -> None:
    indices = RecentIndices(most_records=5)
    files = [FileIdentity(0, number, 0, 0) for number in range(3)]
    form, index = TextRecords(), DatasetIndex(array("Q", (0, 1)), "digest")
    for file in files[:2]:
        indices.keep(file, form, index)
    assert indices.find(files[0], form) == index
    indices.keep(files[2], form, index)
    assert [indices.find(file, form) is None for file in files] == [False, True, False]


def test_returning_task_does_not_reread_its_file(
    base: SharedBase, make_task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "d.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    engine, parsed = FusedEngine(base, DatasetRoot(tmp_path)), list[bytes]()
    monkeypatch.setattr(dataset, "read_json", lambda line: parsed.append(line) or read_json(line))
    task = make_task("job", dataset="d.jsonl")

    engine.attach(task)
    assert len(parsed) == 2
    state = engine.detach("job")
    engine.attach(task, state)

    assert len(parsed) == 2
