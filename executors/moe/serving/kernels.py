"""Kernels that place experts in a serving rank: machine code, or the interpreter until that is compiled.

`python -P -m executors.moe.serving.kernels SCHEME MOST_EXPERTS_PER_DEVICE RANKS EXPERTS` compiles them.
"""

import logging
import subprocess
import sys
import threading

from executors.moe.serving.service import ServiceTerms, warm_up
from schemas.interpreters import python_command
from schemas.service_base import stay_in_background
from solvers.compiled import NotKeptError, change_over, compiling, interpret, loading
from solvers.experts.schemes import SCHEMES
from solvers.kernel_cache import COMPILED_WITHIN_S

_log = logging.getLogger(__name__)


class ServiceKernels:
    """Loads kernels that another process compiles, and interprets them meanwhile: the placements are the
    same."""

    def __init__(self, scheme: str, most_experts_per_device: int, ranks: int, experts: int) -> None:
        """Load them, or start another process that compiles them.

        Raises:
            ValueError: the experts of a layer do not fit on the devices.
        """
        self._order = (scheme, most_experts_per_device, ranks, experts)
        self._loaded = threading.Event()
        try:
            with loading():
                _warm_up(*self._order)
        except NotKeptError:
            interpret()
            threading.Thread(target=self._compile, name="kernels", daemon=True).start()

    @property
    def is_loaded(self) -> bool:
        """Whether there is machine code that `change_over` can install."""
        return self._loaded.is_set()

    def change_over(self) -> None:
        """Switch to machine code, if it is compiled. Called between two batches."""
        if self.is_loaded:
            self._loaded.clear()
            change_over()
            _log.info("kernels of the service run as machine code")

    def _compile(self) -> None:
        command = python_command("-m", "executors.moe.serving.kernels", *map(str, self._order))
        with subprocess.Popen(command, stdin=subprocess.PIPE) as compiler:
            try:
                compiler.wait(COMPILED_WITHIN_S)
            except subprocess.TimeoutExpired:
                compiler.kill()
        # Kernels that could not be cached on disk are compiled here.
        with compiling():
            _warm_up(*self._order)
        self._loaded.set()


def _warm_up(scheme: str, most_experts_per_device: int, ranks: int, experts: int) -> None:
    terms = ServiceTerms(SCHEMES[scheme], most_experts_per_device, path_length=1, profile_batches=1)
    warm_up(terms, ranks, experts)


if __name__ == "__main__":
    stay_in_background()
    name, *sizes = sys.argv[1:]
    _warm_up(name, *map(int, sizes))
