"""A small testbed through Kafka: real training on throttled executors, and its simulation."""

from pathlib import Path

import psutil
import pytest

from bench.testbed.deployed import deployed
from bench.testbed.fleet import SEQUENCE_S, Size
from bench.testbed.parts import TESTBEDS
from bench.testbed.results import read_steps, results_of, simulate
from schemas.jobs import JobSubmitted
from streams.replay.files import DECISIONS_FILE, verify_files

SIZE = Size(nodes=2, jobs=2, length=0.2)


def processes() -> set[str]:
    """Command lines of the processes that this one has started, without Python's own tracker of resources."""
    started = [" ".join(process.cmdline()) for process in psutil.Process().children(recursive=True)]
    return {line for line in started if "multiprocessing.resource_tracker" not in line}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_deployment_is_simulated_from_its_log(tmp_path: Path) -> None:
    before = processes()
    testbed = TESTBEDS["elastic"]
    ledger = deployed(testbed, SIZE, 0, tmp_path)
    assert processes() <= before, "all processes have ended"
    assert verify_files(ledger, ledger.with_name(DECISIONS_FILE)).ok
    steps = read_steps(ledger)
    submitted = [step.entry.envelope.event for step in steps]
    works = {job.job_id: job.workload for job in submitted if isinstance(job, JobSubmitted)}
    measured = results_of(steps)
    assert measured.jobs.keys() == works.keys()
    for job_id, job in measured.jobs.items():
        assert job.jct_s >= works[job_id].work_samples * SEQUENCE_S / works[job_id].max_workers
    simulated = results_of(simulate(steps, testbed.calibrate(steps, frozenset(works))))
    assert simulated.jobs.keys() == works.keys()
    assert deployed(testbed, SIZE, 0, tmp_path) == ledger, "it is not deployed again"
