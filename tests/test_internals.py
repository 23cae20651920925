"""Tests read the state of a zone from its dump (`ZonePolicy.describe`), not from private attributes."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
INTERNAL = re.compile(r"\bzone\._[a-z]|\bzones\[[^]]*\]\._[a-z]|\bzones?\b[^ ]*\.book\b|auction\.book\b")
EXCEPTIONS = {
    "tests/round_robin/cases.py": "fills the room of a snapshot, which takes thousands of jobs",
    "tests/streams/experts/test_placements.py": "compares the packed popularity with its count of bytes",
    "tests/streams/gang/test_tasks_model.py": "compares jobs and tasks with a specification at every step",
    "tests/streams/merging/test_large_questions.py": "sets up thousands of profiled jobs without events",
    "tests/streams/test_faults.py": "makes a zone add a decision that cannot be encoded",
    "tests/support/invariants.py": "compares packed jobs with their count of bytes after every event",
}
"""Files that need what the dump cannot have: bytes of the state, or a state that no events lead to."""


def test_only_known_files_reach_into_zones():
    files = (path for folder in ("tests", "bench", "infra") for path in (ROOT / folder).rglob("*.py"))
    found = {
        str(path.relative_to(ROOT))
        for path in files
        if path != Path(__file__) and INTERNAL.search(path.read_text())
    }
    assert found == EXCEPTIONS.keys()
