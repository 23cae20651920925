"""Datasets come from below the root only, fail early and clearly, and resume exactly."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executors.lora.base_model import SharedBase
from executors.lora.dataset import Cursor, DatasetError, DatasetRoot, take
from executors.lora.records import TextRecord


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
def test_no_name_leads_out_of_the_root_or_to_what_is_no_file(root: Path, name: str) -> None:
    (root / "sub").mkdir()
    (root / "link.jsonl").symlink_to(root.parent / "secret.jsonl")
    (root / "linked-folder").symlink_to(root.parent)
    (root / "loop").symlink_to(root / "loop")
    os.mkfifo(root / "pipe")
    with pytest.raises(DatasetError):
        DatasetRoot(root).open(name)


def test_a_sibling_whose_name_begins_like_the_root_is_outside(root: Path) -> None:
    (root.parent / "root-2").mkdir()
    (root.parent / "root-2" / "data.jsonl").write_text('{"text": "outside"}\n')
    (root / "link").symlink_to(root.parent / "root-2")
    with pytest.raises(DatasetError, match="leads out"):
        DatasetRoot(root).open("link/data.jsonl")


def test_a_link_inside_the_root_and_a_root_behind_a_link_are_fine(root: Path) -> None:
    (root / "alias.jsonl").symlink_to(root / "good.jsonl")
    (root.parent / "root-link").symlink_to(root)
    with DatasetRoot(root.parent / "root-link").open("alias.jsonl") as dataset:
        assert dataset[0] == TextRecord("", "inside")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("\xff", "not JSON"),
        ("[]", "expected"),
        ('"text"', "expected"),
        ('{"text": 3}', "expected"),
        ('{"text": ""}', "expected"),
        ('{"text": "a", "label": 1}', "label: expected"),
        ('{"prompt": "a"}', "expected"),
        ('{"prompt": "a", "completion": ""}', "expected"),
        ('{"text": "' + "a" * (1 << 20) + '"}', "longer than 1048576 bytes"),
    ],
)
def test_a_bad_line_is_named_before_training_begins(root: Path, line: str, problem: str) -> None:
    text = '{"text": "fine"}\n\n' + line + "\n"
    (root / "bad.jsonl").write_bytes(text.encode("latin-1"))
    with pytest.raises(DatasetError, match=rf"^bad\.jsonl, line 3: {problem}"):
        DatasetRoot(root).open("bad.jsonl")


def test_an_empty_dataset_is_refused(root: Path) -> None:
    (root / "empty.jsonl").write_text("\n \n")
    with pytest.raises(DatasetError, match="has no record"):
        DatasetRoot(root).open("empty.jsonl")


def test_records_are_read_in_any_order_and_survive_replacing_the_file(root: Path) -> None:
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
def test_taking_in_parts_is_taking_at_once_and_each_epoch_has_every_record(
    record_count: int, seed: int, counts: list[int]
) -> None:
    at_once, end = take(record_count, seed, Cursor(), sum(counts))
    in_parts, cursor = [], Cursor()
    for count in counts:
        indices, cursor = take(record_count, seed, cursor, count)
        in_parts += indices
    assert (in_parts, cursor) == (at_once, end)
    for epoch in range(len(at_once) // record_count):
        assert sorted(at_once[epoch * record_count :][:record_count]) == list(range(record_count))


def test_epochs_and_tasks_are_shuffled_differently() -> None:
    two_epochs, _ = take(50, 1, Cursor(), 100)
    other_seed, _ = take(50, 2, Cursor(), 50)
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
