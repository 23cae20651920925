"""docs/workloads.md: its script turns a trace with deadlines into jobs that `simulate` plays."""

import json
import subprocess
import sys

from infra.cli import run
from infra.commands.options import CELLS_DIRECTORY

PAGE = CELLS_DIRECTORY.parents[1] / "docs" / "workloads.md"
TRACE = """job_id,user,submit_time_s,duration_s,gpus,gpu_type,status,model
a,ada,0,3600,1,V100,Pass,
b,,600.5,7200,0.5,,Pass,
late,eve,900,3600,1,,Pass,
unknown,eve,1000,3600,1,,Pass,
"""
DEADLINES = "job_id,deadline_s\na,20000\nb,30000\nlate,800\n"


def test_deadlines_of_trace_go_into_job_file(tmp_path, monkeypatch, capsys):
    script = PAGE.read_text().split("```python\n", 1)[1].split("```", 1)[0]
    for name, text in (("jobs_of_trace.py", script), ("trace.csv", TRACE), ("deadlines.csv", DEADLINES)):
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "jobs_of_trace.py", "trace.csv", "deadlines.csv"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    jobs = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(job["job_id"], job["user"], job["at_s"]) for job in jobs] == [
        ("a", "ada", 0.0),
        ("b", "unknown", 600.5),
    ]
    assert [job["terms"]["deadline_in_s"] for job in jobs] == [20_000.0, 29_399.5]
    (tmp_path / "jobs.jsonl").write_text(done.stdout)
    monkeypatch.chdir(tmp_path)

    assert run(["simulate", "--job-file", "jobs.jsonl", "--json"]) == 0

    summary = json.loads(capsys.readouterr().out)
    assert (summary["jobs"], summary["completed"]) == (2, 2)
