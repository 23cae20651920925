"""The tour of the README, run as a stranger would."""

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


def tour_blocks() -> list[str]:
    """The shell blocks between the README's tour marks."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tour = readme.split("<!-- tour -->")[1].split("<!-- /tour -->")[0]
    return re.findall(r"```bash\n(.*?)```", tour, flags=re.DOTALL)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_tour_of_readme_works(port, tmp_path):
    first, *others = (block.replace("9092", str(port)) for block in tour_blocks())
    (tmp_path / ".venv").symlink_to(Path(sys.prefix))
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
    output = tour.stdout
    assert '"type": "millrace.job.admitted.v1"' in output
    assert '"payment_micros"' in output
    assert "not JSON" in output
    assert "poems" in output
    assert "every decision follows from the ledger" in output + tour.stderr
    assert up.returncode in (0, 130), "".join(lines)
