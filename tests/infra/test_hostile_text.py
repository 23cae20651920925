"""Text of other writers reaches terminals and headers of dead letters only in visible characters."""

import json
import logging
from dataclasses import replace

import pytest

from infra.cli import run
from infra.commands.explain import show
from infra.commands.output import print_json, print_line, remark
from infra.views.story import Story
from schemas.lora import Dataset
from schemas.service_base import PlainFormatter
from schemas.text import plain
from streams.kafka.records import ReadRecord
from streams.worker.intake import dead_letter
from tests.support.cells import Bench, bid, failed, online, tick
from tests.support.hostile import HOSTILE

PARAMETERS = pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)


def safe(output: str, lines: int) -> bool:
    *shown, end = output.split("\n")
    return len(shown) == lines and end == "" and all(plain(line) == line for line in shown)


@PARAMETERS
def test_lines_remarks_and_errors_are_safe(capsys, hostile):
    print_line(f"a {hostile} b")
    remark(f"a {hostile} b")
    assert run(["simulate", "--add-nodes", f"x{hostile}"]) == 1
    output = capsys.readouterr()
    assert safe(output.out, 1)
    # A fault of several lines is cut behind the first one.
    assert safe(output.err, 2)


@PARAMETERS
def test_a_line_of_a_services_log_is_safe(hostile):
    record = logging.LogRecord("streams", logging.WARNING, "", 0, "unread error=%s", (f"x{hostile}y",), None)
    assert safe(f"{PlainFormatter().format(record)}\n", 1)


@PARAMETERS
def test_json_is_safe_and_holds_the_same(capsys, hostile):
    print_json({"error": hostile})
    printed = capsys.readouterr().out
    assert safe(printed, 1)
    assert json.loads(printed) == {"error": hostile}


def story(hostile: str) -> Story:
    """A job whose executor, data and senders write to the terminal of whoever reads of it."""
    name = "d.jsonl" if ord(hostile[0]) < ord(" ") or hostile == "\x7f" else f"{hostile}.jsonl"
    failure = failed("a1", 0, 0, permanent=True).model_copy(update={"error": f"x{hostile}y"})
    bench, told = Bench.configured(), Story("j")
    bench.send(online("a1"), bid(dataset=Dataset(path=name, samples=1_000)), tick(0), failure)
    for entry in bench.ledger:
        told.fold_event(entry.offset, replace(entry.envelope, time=f"2026{hostile}"))
    for decision in bench.decisions:
        told.fold_decision(decision)
    return told


@PARAMETERS
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "JSON"])
def test_a_story_is_safe(capsys, hostile, as_json):
    show(f"c{hostile}", story(hostile), as_json)
    printed = capsys.readouterr().out
    assert safe(printed, printed.count("\n"))
    assert (json.dumps(f"x{hostile}y")[1:-1] if as_json else f"x{plain(hostile)}y") in printed


@PARAMETERS
def test_dead_letter_headers_are_escaped_and_counted(hostile):
    raw = hostile.encode()
    record = ReadRecord(
        "t.jobs",
        0,
        0,
        0,
        b"c",
        raw,
        ((f"name{hostile}", b"v"), ("ce_source", raw), ("ce_id", b"e1"), ("odd", b"\xff\x1b")),
    )
    letter = dead_letter(record, "t.jobs.dlt", f"no event: {hostile}")
    kept = dict(letter.headers)
    for name, value in letter.headers:
        assert plain(name) == name
        assert plain(value.decode()) == value.decode()
    assert kept["dlt_escaped_header_count"] == b"3"
    assert kept["ce_id"] == b"e1"
    assert kept["odd"] == b"\\xff\\x1b"
    assert letter.value == raw
