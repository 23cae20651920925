"""Forked processes write their log as their node does."""

import re
import subprocess
import sys

PROGRAM = """
from executors.gang.messages import Membership
from executors.gang.messages import MESSAGES
from executors.processes.forked_process import ForkedProcess
from schemas.service_base import begin_log

begin_log("INFO")
process = ForkedProcess(
    "tests.support.small_processes:warn", Membership(generation=1, rank=0, world=1), MESSAGES, "small"
)
while process.is_alive:
    pass
"""


def test_log_line_of_forked_process_is_complete() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True
    )
    assert re.search(r"^[0-9-]+ [0-9:,]+ WARNING small: a job failed$", ended.stderr, re.MULTILINE)
