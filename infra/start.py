"""The start of `millrace`: it imports nothing that takes time, and says so where the command's imports do."""

import sys
import threading
from typing import NoReturn

EXIT_INTERRUPTED = 130
NOTICE_AFTER_S = 1.5


def main() -> NoReturn:
    """Run a command and end the process with its status, after Ctrl-C at any moment with 130."""
    try:
        notice = threading.Timer(NOTICE_AFTER_S, _notice)
        notice.daemon = True
        notice.start()
        from infra import cli

        cli.main(loaded=notice.cancel)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _notice() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("millrace: loading, which takes seconds the first time after an installation\n")
        sys.stderr.flush()
