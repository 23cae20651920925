"""Files of elastic jobs, and the words in which a quote of one is answered."""

from pathlib import Path

import pytest

from infra.event_files import EntriesFileError, read_jobs, read_quote_requests
from infra.views.words import describe
from schemas.decisions import JobQuoted
from schemas.elastic.workload import ElasticTerms, ElasticWorkload
from schemas.jobs import JobQuoteRequested
from tests.support.elastic import CELL, ZONE, ElasticBench, elastic_cell, submit, tick, workload

JOB = """\
- job_id: tune-1
  user: ann
  zone: train
  terms: {kind: elastic}
  workload:
    kind: elastic
    work_samples: 120000
    model: models/tiny
    dataset: {path: data/corpus.jsonl, samples: 20000}
    samples_per_s: 12.5
    min_workers: 2
    max_workers: 8
"""


def written(folder: Path, text: str) -> str:
    file = folder / "jobs.yaml"
    file.write_text(text)
    return str(file)


def test_an_elastic_job_is_read_from_yaml(tmp_path: Path) -> None:
    (job,) = read_jobs(written(tmp_path, JOB), 0.0, "c")
    assert isinstance(job.workload, ElasticWorkload)
    assert (job.workload.min_workers, job.workload.max_workers) == (2, 8)
    assert job.terms == ElasticTerms()


def test_elastic_job_file_requests_quote(tmp_path: Path) -> None:
    file = written(tmp_path, JOB)
    (job,), (request,) = read_jobs(file, 0.0, "c"), read_quote_requests(file, 0.0, "c")
    assert (request.user, request.zone, request.workload) == (job.user, job.zone, job.workload)
    assert request.terms == ElasticTerms()


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("min_workers: 2", "min_workers: 9", "5: workload.elastic: min_workers 9 is above max_workers 8"),
        (
            "max_workers: 8",
            "max_workers: 8\n    speedup: [1, 1.9]",
            "5: workload.elastic: speedup has 2 values, expected one for each of 8 workers",
        ),
        (
            "max_workers: 8",
            "max_workers: 3\n    speedup: [1, 1.9, 1.8]",
            "5: workload.elastic: speedup falls: give the throughput of 1, 2, ... workers, which never falls",
        ),
        (
            "max_workers: 8",
            "max_workers: 2\n    speedup: [1.0e-300, 1]",
            "13: workload.elastic.speedup.0: Input should be greater than or equal to 1",
        ),
        (
            "max_workers: 8",
            "max_workers: 2\n    speedup: [1.5, 2]",
            "5: workload.elastic: speedup begins with 1.5: give throughputs over that of one worker, so 1 "
            "first",
        ),
        (
            "max_workers: 8",
            "max_workers: 2\n    speedup: [1, 4.5]",
            "5: workload.elastic: speedup is 4.5 with 2 workers, at most 2 for each of them: give the "
            "throughput over that of one worker",
        ),
        (
            "samples_per_s: 12.5",
            "samples_per_s: 1.0e-9",
            "5: workload.elastic: 120000 samples at 1e-09 samples/s with one worker take more than a "
            "million years with min_workers 2, at most 10: check samples_per_s, or give the job more "
            "min_workers or less work",
        ),
        (
            "max_workers: 8",
            "max_workers: 64",
            "5: workload.elastic: a global batch of 32 has no sample for each of 64 workers",
        ),
    ],
)
def test_contradicting_job_is_refused_in_one_line(
    tmp_path: Path, before: str, after: str, fault: str
) -> None:
    file = written(tmp_path, JOB.replace(before, after))
    with pytest.raises(EntriesFileError) as refused:
        read_jobs(file, 0.0, "c")
    assert str(refused.value) == f"{file}:{fault}"


def quoted(bench: ElasticBench, work_s: float, workers: tuple[int, int]) -> list[str]:
    request = JobQuoteRequested(
        cell=CELL,
        quote_id="q",
        user="ann",
        zone=ZONE,
        workload=workload(work_s, workers),
        terms=ElasticTerms(),
    )
    (answer,) = bench.send(request)
    assert isinstance(answer, JobQuoted)
    return describe(answer)


def test_quote_has_start_and_range_of_end() -> None:
    bench = ElasticBench()
    bench.send(elastic_cell(servers=1), tick(0.0))
    assert quoted(bench, 3_600, (1, 4)) == [
        "starts at 1970-01-01T00:01:00.000Z, "
        "ends between 1970-01-01T00:16:00.000Z and 1970-01-01T01:01:00.000Z",
        "as things stand: later jobs, loans and reclaims change it; jobs that wait now: 0",
    ]


def test_quote_of_fixed_size_has_one_end() -> None:
    bench = ElasticBench()
    bench.send(elastic_cell(servers=1), tick(0.0), submit("before", 600, (4, 4)))
    head, *_ = quoted(bench, 3_600, (4, 4))
    assert head == "starts at 1970-01-01T00:04:00.000Z, ends at 1970-01-01T00:19:00.000Z"


def test_impossible_job_is_answered_with_reason() -> None:
    bench = ElasticBench()
    bench.send(elastic_cell(servers=1), tick(0.0))
    assert quoted(bench, 600, (5, 5)) == [
        "larger_than_the_zone: 5 workers of 1 GPUs each, and the zone's training servers (own, at least as "
        "fast as the reference) have room for 4"
    ]
