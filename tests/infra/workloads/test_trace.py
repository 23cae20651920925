import gzip
from pathlib import Path

import pytest

from infra.workloads import trace as trace_module
from infra.workloads.trace import UNKNOWN_USER, TraceError, TraceJob, read_trace

HEADER = "job_id,user,submit_time_s,duration_s,gpus,gpu_type,status,model\n"
GOOD = "j1,u,10,60,2,,,\n"
PHILLY = Path(__file__).parents[3] / "../shared/traces/jobs_philly.csv.gz"


def test_jobs_are_read_from_plain_and_gzipped_files(tmp_path):
    text = HEADER + "j0,,9.5,30,1,V100,Pass,bert\n" + GOOD
    plain, zipped = tmp_path / "t.csv", tmp_path / "t.csv.gz"
    plain.write_text(text)
    zipped.write_bytes(gzip.compress(text.encode()))
    expected = [TraceJob("j0", UNKNOWN_USER, 9.5, 30.0, 1), TraceJob("j1", "u", 10.0, 60.0, 2)]
    assert read_trace(plain) == read_trace(zipped) == expected
    assert expected[1].gpu_s == 120.0


def test_job_may_request_share_of_gpu(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(HEADER + "j1,u,10,60,0.25,,,\n")
    (job,) = read_trace(path)
    assert (job.gpus, job.gpu_s) == (0.25, 15.0)


def test_byte_order_mark_is_not_part_of_header(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(HEADER + GOOD, encoding="utf-8-sig")
    assert [job.job_id for job in read_trace(path)] == ["j1"]


BAD = {
    "another header": (
        "job_id,user,duration_s\n",
        "row 1: column submit_time_s is missing, expected the header job_id,user,",
    ),
    "columns in another order": (
        "user,job_id,submit_time_s,duration_s,gpus,gpu_type,status,model\n",
        "row 1: expected the header job_id,user,",
    ),
    "nothing": ("", "row 1: expected the header"),
    "no job": (HEADER, "has no job"),
    "a column too few": (HEADER + "j1,u,10,60,2,,\n", "row 2: 7 columns, expected 8"),
    "a time that is no number": (
        HEADER + GOOD + "j2,u,soon,60,2,,,\n",
        "row 3: column submit_time_s: 'soon'",
    ),
    "a time that is not a number": (HEADER + "j2,u,nan,60,2,,,\n", "row 2: column submit_time_s: 'nan'"),
    "a time with an underscore": (HEADER + "j2,u,1_0,60,2,,,\n", "row 2: column submit_time_s: '1_0'"),
    "a time in other digits": (HEADER + "j2,u,\u0661,60,2,,,\n", "row 2: column submit_time_s: '\u0661'"),
    "a padded time": (HEADER + "j2,u, 1,60,2,,,\n", "row 2: column submit_time_s: ' 1'"),
    "a time beyond all numbers": (HEADER + "j2,u,1e999,60,2,,,\n", "row 2: column submit_time_s: '1e999'"),
    "a negative duration": (HEADER + "j2,u,1,-60,2,,,\n", "row 2: column duration_s: '-60'"),
    "no duration": (HEADER + "j2,u,1,,2,,,\n", "row 2: column duration_s: ''"),
    "no GPU": (HEADER + "j2,u,1,60,0,,,\n", "row 2: column gpus: '0'"),
    "a user that is no name": (HEADER + "j2,a b,1,60,1,,,\n", "row 2: column user: 'a b'"),
    "a job before the one above": (
        HEADER + GOOD + "j2,u,9.9,60,1,,,\n",
        "row 3: column submit_time_s: 9.9 is before the 10.0 of the job above",
    ),
    "a GPU type that nobody knows": (
        HEADER + "j2,u,1,60,1,RTX9,,\n",
        "row 2: column gpu_type: 'RTX9' is not blank or",
    ),
    "no job id": (HEADER + ",u,1,60,1,,,\n", "row 2: column job_id: ''"),
    "an open quote": (HEADER + '"j2,u,1,60,1,,,\n' + GOOD, "row 2: unexpected end of data"),
    "a job twice": (
        HEADER + GOOD + "j2,u,10,1,1,,,\n" + GOOD,
        "row 4: column job_id: j1 is in row 2 already",
    ),
}


@pytest.mark.parametrize(("text", "fault"), BAD.values(), ids=BAD.keys())
def test_invalid_file_is_named_by_row_and_column(tmp_path, text, fault):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert str(error.value).startswith(f"{path}: ")
    assert fault in str(error.value)
    assert "\n" not in str(error.value)


BROKEN = {
    "no archive": (
        b"\x1f\x8bnot gzip at all",
        "after row 0: the gzip archive is broken: Unknown compression",
    ),
    "no text": (b"\xff\xfe\x00", "row 1: byte 1 of it is not UTF-8"),
    "another encoding": (
        (HEADER + GOOD).encode() + "j2,u,11,60,2,,,modèle\n".encode("latin-1"),
        "row 3: byte 19 of it is not UTF-8",
    ),
    "an archive cut short": (
        gzip.compress(b"a" * 99)[:20],
        "after row 0: the gzip archive is broken: Compress",
    ),
    "an archive that lacks its end": (
        gzip.compress((HEADER + GOOD).encode())[:-8],
        "after row 2: the gzip archive is broken: Compress",
    ),
    "no deflated block": (
        gzip.compress((HEADER + GOOD).encode())[:10] + b"\xff" * 40,
        "after row 0: the gzip archive is broken: Error -3",
    ),
}


@pytest.mark.parametrize(("content", "fault"), BROKEN.values(), ids=BROKEN.keys())
def test_invalid_bytes_are_refused_with_row(tmp_path, content, fault):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert str(error.value).startswith(f"{path}: {fault}")


def test_damaged_archive_is_fault_or_trace(tmp_path):
    path = tmp_path / "t.csv.gz"
    jobs = [f"j{number},u{number % 7},{number}.5,{60 + number * 37 % 91},1,,,\n" for number in range(60)]
    whole = gzip.compress("".join([HEADER, *jobs]).encode(), mtime=0)
    damaged = [whole[:length] for length in range(len(whole))]
    damaged += [
        whole[:place] + bytes([whole[place] ^ flipped]) + whole[place + 1 :]
        for place in range(len(whole))
        for flipped in (0x01, 0x80, 0xFF)
    ]
    faults = []
    for content in damaged:
        path.write_bytes(content)
        try:
            # The archive's header holds things that do not matter, and its content is checksummed.
            assert len(read_trace(path)) == 60
        except TraceError as error:
            faults.append(str(error))
    assert all(fault.startswith(f"{path}: ") and "\n" not in fault for fault in faults)
    assert len(faults) > 0.9 * len(damaged)


def test_endless_line_is_not_read_to_end(tmp_path):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress((HEADER + "x" * 10**6).encode()))
    with pytest.raises(TraceError, match="row 2: longer than 4096 bytes"):
        read_trace(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TraceError, match=r"none\.csv: No such file"):
        read_trace(tmp_path / "none.csv")


def test_archive_bomb_is_not_read_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_module, "MAX_TRACE_BYTES", 1_000)
    path = tmp_path / "t.csv.gz"
    path.write_bytes(
        gzip.compress((HEADER + "".join(f"j{n:03},u,10,60,2,,,\n" for n in range(100))).encode())
    )
    with pytest.raises(TraceError, match="row 54: more than 1000 bytes"):
        read_trace(path)


@pytest.mark.skipif(not PHILLY.exists(), reason="the real traces are not here")
def test_the_philly_trace_is_read_whole():
    jobs = read_trace(PHILLY)
    assert len(jobs) == 80_702
    assert jobs[0].job_id == "phl-07741"
