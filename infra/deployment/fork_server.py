"""The process that executors and their workers are forked from: it imports torch, and they need not."""

import multiprocessing
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

from executors.processes.fork_server import PRELOADED, Surroundings, attached
from executors.processes.forked_service import serve_forked
from infra.deployment.service import STOP_TIMEOUT_S, Launch, Service, ServiceProcess, command
from infra.errors import CommandError
from schemas.interpreters import python_command

_IMPORTED = (
    *PRELOADED,
    "executors.node.process",
    "executors.lora.slots.runner",
    "executors.elastic.rank",
    "executors.tuner.rank",
    "executors.moe.serving.rank",
    "executors.moe.training.rank",
)
_LOOK_EVERY_S = 0.1
_context = multiprocessing.get_context("forkserver")
_starting = threading.Lock()


class Forks:
    """Starts executors by forking them from the server that this process is attached to, which others keep
    running."""

    @property
    def services(self) -> Sequence[Service]:
        """Services that are kept running for it."""
        return ()

    @property
    def is_ready(self) -> bool:
        """True once it has imported everything; before, a fork waits for that."""
        return True

    def deaths(self) -> int:
        """Return how often it has died, and was started again, since the last call.

        Raises:
            CommandError: it cannot be kept running.
        """
        return 0

    def forked(self, name: str, environment: Mapping[str, str], function: str, *arguments: object) -> Launch:
        """Return what forks a process. It waits until the server is ready.

        Args:
            name: what tools call the process.
            environment: added to the environment of this process.
            function: `module:function` that the process calls.
        """

        def launch(log_path: Path) -> ServiceProcess:
            with log_path.open("ab") as log:
                surroundings = Surroundings.of_this_process({**os.environ, **environment}, log.fileno())
                called = (function, arguments, name, surroundings, STOP_TIMEOUT_S)
                return _Forked(_start(name, serve_forked, called))

        return launch


class ForkServer(Forks):
    """A server of this process, which imports what all executors need.

    It is started again when it dies. That is for threads of its own: a fork that has been asked for waits for
    the next server, in whatever thread.
    """

    def __init__(self, service: Service, listener: socket.socket, address: Path) -> None:
        """Describe a server that listens at `address`, and that this process is attached to."""
        self.service = service
        self.address = address
        self._listener = listener
        self._is_ready = threading.Event()
        self._is_over = threading.Event()
        self._deaths = 0
        self._fault: CommandError | None = None
        self._keeping = threading.Thread(target=self._keep, name="fork-server", daemon=True)
        self._probing = threading.Thread(target=self._probe, name="fork-server-probe", daemon=True)

    @property
    def services(self) -> Sequence[Service]:
        return (self.service,)

    @property
    def is_ready(self) -> bool:
        return self._is_ready.is_set()

    def check(self) -> None:
        """Return if it runs, or is started again.

        Raises:
            CommandError: it cannot be kept running.
        """
        if self._fault is not None:
            raise self._fault

    def deaths(self) -> int:
        self.check()
        deaths, self._deaths = self._deaths, 0
        return deaths

    def start(self) -> None:
        """Start it."""
        self.service.start()
        self._keeping.start()
        self._probing.start()

    def stop(self) -> None:
        """Stop it. What was forked from it has been stopped before."""
        self._is_over.set()
        self._keeping.join()
        self.service.stop()
        self._listener.close()  # whoever waits for a server that has died waits no more
        self._probing.join()

    def _keep(self) -> None:
        while not self._is_over.wait(_LOOK_EVERY_S):
            if self.service.exit_status is None:
                continue
            self._is_ready.clear()
            try:
                self.service.keep_running()
            except CommandError as error:
                self._fault = error
                self._listener.close()
                return
            self._deaths += 1

    def _probe(self) -> None:
        while not self._is_over.wait(_LOOK_EVERY_S):
            if not self._is_ready.is_set():
                with suppress(OSError, EOFError):  # it has died just now
                    _start("ready", int, ()).join()
                    self._is_ready.set()


@contextmanager
def fork_server(log_folder: Path, modules: Sequence[str] = _IMPORTED) -> Iterator[ForkServer]:
    """Have a fork server for the length of the block. It imports beside what this process does."""
    with (
        TemporaryDirectory(prefix="millrace-") as folder,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        address = Path(folder) / "fork-server"
        listener.bind(str(address))
        listener.listen()
        arguments = ("-m", "executors.processes.fork_server", str(listener.fileno()), *modules)
        launch = command(python_command(*arguments), {}, inherited=listener.fileno())
        server = ForkServer(Service("fork-server", launch, log_folder), listener, address)
        with attached(address):
            server.start()
            try:
                yield server
            finally:
                server.stop()


class _Forked:
    """See `ServiceProcess`."""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process.is_alive() else None

    @property
    def exit_status(self) -> int | None:
        status = self._process.exitcode
        return 128 - status if status is not None and status < 0 else status

    def stop(self) -> None:
        for end in (self._process.terminate, self._process.kill):
            end()
            self._process.join(STOP_TIMEOUT_S)
            if not self._process.is_alive():
                return


def _start(name: str, target: Callable[..., object], arguments: tuple[object, ...]) -> BaseProcess:
    """Fork a process, which does not import the main module of this one, as it would otherwise."""
    process = _context.Process(target=target, args=arguments, name=name)
    with _starting:
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            process.start()
        finally:
            sys.modules["__main__"] = main
    return process
