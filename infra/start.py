"""Entry point of `millrace`: it imports no slow modules, and prints a notice if the command's imports take
long."""

import os
import signal
import sys
import threading
from typing import NoReturn

from schemas.errors import EXIT_INTERRUPTED

NOTICE_AFTER_S = 1.5
_WITH_PROGRESS = {"up", "demo"}
"""Commands that report their progress on standard error without a terminal, too."""


def main() -> NoReturn:
    """Run a command and end the process with its status, after Ctrl-C with 130."""
    _open_closed_streams()
    try:
        notice = threading.Timer(NOTICE_AFTER_S, _notice)
        notice.daemon = True
        notice.start()
        from infra import cli

        cli.main(loaded=notice.cancel)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    finally:
        # A second Ctrl-C would end the process by a signal while it ends with its status.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _open_closed_streams() -> None:
    """Replace closed standard streams in the order of their descriptors, as the lowest free one is opened."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


def _notice() -> None:
    if sys.stderr.isatty() or not _WITH_PROGRESS.isdisjoint(sys.argv[1:2]):
        sys.stderr.write("millrace: loading, which takes longer the first time after an installation\n")
        sys.stderr.flush()
