"""Models for the jobs of the demo that bring their own."""

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.errors import CommandError
from schemas.interpreters import python_command

MODEL = "tiny-llama"
_STOP_S = 10.0


@contextmanager
def default_model(folder: Path) -> Iterator[Callable[[], None]]:
    """Have the small default model found, and made if there is none. What the block is given waits until the
    model lies in `folder`.

    Raises:
        CommandError: it cannot be made.
    """
    # torch is loaded by another process, and meanwhile the services start.
    command = python_command("-m", "executors.lora.default_base")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as making:

        def copied() -> None:
            found, said = making.communicate()
            if making.returncode:
                raise CommandError(f"the default model cannot be made: {said.strip()}")
            shutil.copytree(found.strip(), folder / MODEL)

        try:
            yield copied
        finally:
            # It removes what it has half made.
            making.send_signal(signal.SIGINT)
            try:
                making.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                making.kill()
