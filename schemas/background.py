"""Background processes, which work for another one at the lowest priority."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from threading import Thread

from schemas.services import EXIT_FAILED

_LEAST_PRIORITY = 19


def stay_in_background() -> None:
    """Run this process at the lowest priority, and end it when its standard input is closed."""
    os.nice(_LEAST_PRIORITY)
    # Linux may share the processor among sessions first, and then among the processes of each.
    os.setsid()
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_LEAST_PRIORITY))
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # Not by the buffered reader, whose lock the interpreter needs at its end.
    os.read(sys.stdin.fileno(), 1)
    os._exit(EXIT_FAILED)
