"""The tours of pages, run as a newcomer would run them."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
START_S = 150
TOUR_S = 150

pytestmark = pytest.mark.timeout(START_S + TOUR_S + 60)


def tour_blocks(page: str) -> list[str]:
    """The shell blocks between a page's tour marks."""
    text = (ROOT / page).read_text(encoding="utf-8")
    tour = text.split("<!-- tour -->")[1].split("<!-- /tour -->")[0]
    return re.findall(r"```bash\n(.*?)```", tour, flags=re.DOTALL)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_tour_of_readme_works(port, tmp_path):
    output = toured("README.md", port, tmp_path)
    assert '"type": "millrace.job.admitted.v1"' in output
    assert '"payment_micros"' in output
    assert "not JSON" in output
    assert "poems" in output
    assert "every decision follows from the ledger" in output


@pytest.mark.slow
def test_tour_of_vendors_works(port, tmp_path):
    output = toured("docs/auction/vendors.md", port, tmp_path)
    assert "its data are ordered from cleaners for 0.0700, due by " in output
    assert "cleaners has prepared 60 samples in prepared/prepared/cleaners/" in output
    assert "delivered (in_time): cleaners gets 0.0700" in output
    assert "result=delivered read=81 kept=60 duplicates=20 invalid=1 unfit=0" in output
    assert "every decision follows from the ledger" in output


def toured(page: str, port: int, tmp_path: Path) -> str:
    """Run the first block of a page's tour until it is up, then the others; return what they print."""
    first, *others = (block.replace("9092", str(port)) for block in tour_blocks(page))
    (tmp_path / ".venv").symlink_to(Path(sys.prefix))
    (tmp_path / "infra").mkdir()
    (tmp_path / "infra" / "cells").symlink_to(ROOT / "infra" / "cells")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    up = subprocess.Popen(
        ["bash", "-c", first],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    lines: list[str] = []
    ready = threading.Event()

    def read() -> None:
        for line in up.stdout:
            lines.append(line)
            if line.startswith("up:"):
                ready.set()

    threading.Thread(target=read, daemon=True).start()
    try:
        assert ready.wait(START_S), "".join(lines)
        tour = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", "\n".join(others)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TOUR_S,
            check=False,
        )
        assert tour.returncode == 0, tour.stdout + tour.stderr
    finally:
        os.killpg(up.pid, signal.SIGINT)
        try:
            up.wait(60)
        finally:
            if up.poll() is None:
                os.killpg(up.pid, signal.SIGKILL)
    assert up.returncode in (0, 130), "".join(lines)
    return tour.stdout + tour.stderr
