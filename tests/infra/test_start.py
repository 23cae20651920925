"""`millrace` before its command is imported."""

import os
import pty
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def started(change: str) -> tuple[int, str]:
    """The status of `millrace --help`, changed by these lines, and what it prints on a terminal."""
    ours, theirs = pty.openpty()
    script = f"import sys\nfrom infra import start\n{change}\nsys.argv = ['millrace', '--help']\nstart.main()"
    command = [sys.executable, "-c", script]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 4096):
            said += part
    except OSError:  # the process has closed the other end
        pass
    finally:
        os.close(ours)
    return process.wait(), said.decode()


def test_slow_loading_command_reports_it():
    assert started("start.NOTICE_AFTER_S = 0.0") == (
        0,
        "millrace: loading, which takes longer the first time after an installation\r\n",
    )


def test_fast_loading_command_is_silent():
    assert started("start.NOTICE_AFTER_S = 60.0") == (0, "")


def test_an_interrupt_while_it_loads_is_no_traceback():
    interrupted = """
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
"""
    assert started(interrupted) == (130, "")


def test_closed_streams_are_no_traceback():
    script = "import sys; from infra import start; sys.argv = ['millrace', 'schemas', 'print']; start.main()"
    shell = f'exec {sys.executable} -c "{script}" >&- <&-'
    ended = subprocess.run(["sh", "-c", shell], cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
