import io
import json
import sys

import pytest

from infra import event_files
from infra.event_files import EntriesFileError, read_jobs, read_quote_requests
from tests.support.cells import bid

NOW_S = 1_000.0
GOOD = """\
- cell: c
  job_id: first
  user: ann
  zone: z
  workload:
    kind: lora
    work_samples: 200
    dataset: {path: d.jsonl, samples: 1000}
  terms:
    kind: bid
    bid: 12.5
    deadline_in_s: 60
- cell: c
  user: bob
  zone: z
  workload:
    kind: lora
    work_samples: 100
    dataset: {path: d.jsonl, samples: 1000}
  terms:
    kind: bid
    bid_micros: 7
    deadline_s: 1100.0
"""


def test_bids_are_read_from_yaml_with_their_conveniences(tmp_path):
    path = tmp_path / "bids.yaml"
    path.write_text(GOOD)
    first, second = read_jobs(str(path), NOW_S)
    assert (first.job_id, first.terms.bid_micros, first.terms.deadline_s) == ("first", 12_500_000, 1_060.0)
    assert (second.user, second.terms.bid_micros, second.terms.deadline_s) == ("bob", 7, 1_100.0)
    assert second.job_id.startswith("job-")


def test_bids_are_read_from_json_lines_and_stdin(tmp_path, monkeypatch):
    event = bid("j1", units=3.0)
    line = event.model_dump_json()
    path = tmp_path / "bids.jsonl"
    path.write_text(f"{line}\n\n{line}\n")
    assert read_jobs(str(path), NOW_S) == [event, event]
    for content in (f"{line}\n", GOOD):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
        assert read_jobs("-", NOW_S)


def test_single_bid_and_separate_cell_are_read(tmp_path):
    path = tmp_path / "bid.yaml"
    fields = bid("j1").model_dump(mode="json")
    del fields["cell"]
    path.write_text(json.dumps(fields))
    assert [b.cell for b in read_jobs(str(path), NOW_S, "elsewhere")] == ["elsewhere"]


def test_an_amount_is_never_rounded(tmp_path):
    path = tmp_path / "bids.yaml"
    path.write_text(GOOD.replace("12.5", "'0.000001'"))
    assert read_jobs(str(path), NOW_S)[0].terms.bid_micros == 1
    path.write_text(GOOD.replace("12.5", "'0.1234567'"))
    with pytest.raises(EntriesFileError, match="bid: not an amount"):
        read_jobs(str(path), NOW_S)


def test_bid_file_requests_quote(tmp_path):
    path = tmp_path / "bids.yaml"
    path.write_text(GOOD)
    first, _ = read_quote_requests(str(path), NOW_S)
    assert first.workload == read_jobs(str(path), NOW_S)[0].workload
    assert first.quote_id.startswith("quote-")


BAD = {
    "no YAML": ("- cell: [c\n", 2, "not YAML"),
    "no jobs": ("", None, "holds no job"),
    "a word": ("hello\n", 1, "a job is a mapping"),
    "an unknown field": (GOOD.replace("user: ann", "usr: ann"), 3, "usr: Extra inputs"),
    "a missing field": (GOOD.replace("  user: bob\n", ""), 13, "user: Field required"),
    "a wrong type deep inside": (
        GOOD.replace("work_samples: 100", "work_samples: many"),
        18,
        "workload.lora.work_samples",
    ),
    "a path that climbs": (
        GOOD.replace(
            "d.jsonl, samples: 1000}\n  terms:\n    kind: bid\n    bid:",
            "../d, samples: 1}\n  terms:\n    kind: bid\n    bid:",
        ),
        8,
        "dataset",
    ),
    "a field given twice": (
        GOOD.replace("  user: ann\n", "  user: ann\n  user: eve\n"),
        4,
        "user is given twice",
    ),
    "both amounts": (GOOD.replace("bid: 12.5", "bid: 1\n    bid_micros: 5"), 11, "either bid or bid_micros"),
    "both deadlines": (GOOD.replace("in_s: 60", "in_s: 60\n    deadline_s: 5.0"), 12, "either deadline_in_s"),
    "a deadline that is over": (
        GOOD.replace("in_s: 60", "in_s: -5"),
        12,
        "not a positive number of seconds",
    ),
    "a deadline that is no number": (
        GOOD.replace("in_s: 60", "in_s: soon"),
        12,
        "not a positive number of seconds",
    ),
    "a deadline beyond all floats": (
        GOOD.replace("in_s: 60", "in_s: " + "9" * 60),
        12,
        "not a positive number of seconds up to",
    ),
    "an amount of 5,000 digits": (
        GOOD.replace("12.5", "0x" + "f" * 5_000),
        11,
        "a number of 5002 characters",
    ),
    "a key that is a list": (GOOD.replace("  user: ann\n", "  ? [user]\n  : ann\n"), 3, "must be a word"),
    "a field's name with escapes": (
        GOOD.replace("user: ann", '"\\e]0;x\\n": ann'),
        3,
        r"'\x1b]0;x\n': Extra inputs",
    ),
    **{
        f"the amount {amount}": (GOOD.replace("12.5", amount), 11, "terms.bid: not an amount")
        for amount in ("1_00e0", "'1_000'", "'0100'", "'１００'", "0900", "' 12'")
    },
    "a negative amount": (GOOD.replace("12.5", "-1"), 11, "terms.bid: not an amount"),
    "an infinite amount": (GOOD.replace("12.5", ".inf"), 11, "terms.bid: not an amount"),
    "too large an amount": (GOOD.replace("12.5", "1000000001"), 11, "terms.bid: not an amount"),
    "a date": (GOOD.replace("deadline_s: 1100.0", "deadline_s: 2026-01-01"), 23, "should be a valid number"),
    "an alias": (GOOD.replace("user: ann", "user: &u ann").replace("user: bob", "user: *u"), 14, "aliases"),
    "a tag": (
        GOOD.replace("user: ann", "user: !!python/name:os.system"),
        3,
        "python/name:os.system is not allowed",
    ),
    "nesting without end": ("- " + "[" * 40 + "\n", 1, "nested deeper than 16"),
}


@pytest.mark.parametrize(("text", "line", "fault"), BAD.values(), ids=BAD.keys())
def test_fault_is_one_line_with_file_and_line(tmp_path, text, line, fault):
    path = tmp_path / "bids.yaml"
    path.write_text(text)
    with pytest.raises(EntriesFileError) as error:
        read_jobs(str(path), NOW_S)
    place = f"{path}:{line}: " if line else f"{path}: "
    assert str(error.value).startswith(place)
    assert fault in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        '{"cell": "c", "cell": "d"}',
        "3",
        '{"bid": 1' + "0" * 5_000 + "}",
        '{"bid": NaN}',
        *(depth * "[" + depth * "]" for depth in (5_000, 900)),
        *('{"a":' * depth + "1" + "}" * depth for depth in range(700, 1_000, 10)),
    ],
    ids=lambda line: line[:24],
)
def test_invalid_json_line_is_named_by_number(tmp_path, line):
    path = tmp_path / "bids.jsonl"
    path.write_text(f"{bid().model_dump_json()}\n{line}\n")
    with pytest.raises(EntriesFileError, match=r"bids\.jsonl:2: "):
        read_jobs(str(path), NOW_S)


def test_byte_order_mark_and_all_characters_are_read(tmp_path):
    path = tmp_path / "bids.jsonl"
    fields = bid().model_dump(mode="json")
    fields["workload"]["dataset"]["path"] = "one\u2028two.jsonl"
    path.write_text("\ufeff" + json.dumps(fields, ensure_ascii=False) + "\r\n", newline="")

    (read,) = read_jobs(str(path), NOW_S)

    assert read.workload.dataset.path == "one\u2028two.jsonl"


def test_files_are_bounded(tmp_path, monkeypatch):
    path = tmp_path / "bids.jsonl"
    path.write_text(f"{bid().model_dump_json()}\n" * 3)
    monkeypatch.setattr(event_files, "MAX_ENTRIES", 2)
    with pytest.raises(EntriesFileError, match="more than 2 entries"):
        read_jobs(str(path), NOW_S)
    monkeypatch.setattr(event_files, "MAX_FILE_BYTES", 100)
    with pytest.raises(EntriesFileError, match="larger than 100 bytes"):
        read_jobs(str(path), NOW_S)


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(EntriesFileError, match=r"none\.yaml: No such file"):
        read_jobs(str(tmp_path / "none.yaml"), NOW_S)
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(EntriesFileError, match="not UTF-8"):
        read_jobs(str(path), NOW_S)
