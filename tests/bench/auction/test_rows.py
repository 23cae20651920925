"""What was run is kept, found again under the same sources alone, and survives a kill."""

import json
import math
from dataclasses import asdict

import pytest

from bench.auction.runs.pool import ROWS_FILE, Rows
from bench.auction.runs.trial import Trial
from infra.errors import CommandError
from tests.bench.auction.rows import TINY, row

EFT, NTM = Trial(TINY, 0, "eft"), Trial(TINY, 0, "ntm")


def line_of(**changed: object) -> str:
    return json.dumps({**asdict(row(EFT, welfare_micros=7)), **changed})


def test_rows_are_found_again(tmp_path):
    Rows(tmp_path, "s").append(row(EFT, welfare_micros=7))
    again = Rows(tmp_path, "s")
    assert again.values(EFT) == {"welfare_micros": 7}
    assert again.missing([EFT, NTM, NTM]) == [NTM]


def test_a_torn_last_line_is_dropped_and_the_next_row_starts_a_line(tmp_path):
    rows = Rows(tmp_path, "s")
    rows.append(row(EFT, welfare_micros=7))
    rows.append(row(NTM, welfare_micros=8))
    path = tmp_path / ROWS_FILE
    path.write_bytes(path.read_bytes()[:-5])
    again = Rows(tmp_path, "s")
    assert again.missing([EFT, NTM]) == [NTM]
    again.append(row(NTM, welfare_micros=9))
    assert Rows(tmp_path, "s").values(NTM) == {"welfare_micros": 9}
    assert len(path.read_text().splitlines()) == 2


def test_rows_of_other_sources_are_kept_and_not_reused(tmp_path):
    Rows(tmp_path, "old").append(row(EFT, sources="old", welfare_micros=7))
    assert Rows(tmp_path, "new").missing([EFT]) == [EFT]
    assert Rows(tmp_path, "old").missing([EFT]) == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"setting": "base"}', "seed: Field required"),
        ("[]", ""),
        ("garbage", "Invalid JSON"),
        (line_of(values=None), "values: "),
        (line_of(values={"welfare_micros": "7"}), "values.welfare_micros: "),
        (line_of(values={"welfare_micros": math.nan}), "values.welfare_micros: "),
        (line_of(alone="yes"), "alone: "),
        (line_of(colour="red"), "colour: "),
    ],
)
def test_a_line_that_is_no_row_is_named(tmp_path, line, fault):
    (tmp_path / ROWS_FILE).write_text(f"{line_of()}\n{line}\n")
    with pytest.raises(CommandError, match=rf"rows.jsonl, line 2: no row of a benchmark \(.*{fault}"):
        Rows(tmp_path, "s")


def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CommandError, match=r"file/rows.jsonl: File exists"):
        Rows(tmp_path / "file", "s")
    (tmp_path / ROWS_FILE).mkdir()
    with pytest.raises(CommandError, match=r"rows.jsonl: Is a directory"):
        Rows(tmp_path, "s")


def test_a_run_beside_others_does_not_serve_where_one_alone_is_wanted(tmp_path):
    rows = Rows(tmp_path, "s")
    alone = Trial(TINY, 0, "eft", alone=True)
    rows.append(row(EFT, alone=False, welfare_micros=7))
    assert rows.missing([EFT, alone]) == [alone]
    rows.append(row(EFT, alone=True, welfare_micros=7))
    assert rows.missing([EFT, alone]) == []


def test_what_was_not_run_has_no_values(tmp_path):
    with pytest.raises(KeyError, match=r"seed 0, eft: not run"):
        Rows(tmp_path, "s").values(EFT)
