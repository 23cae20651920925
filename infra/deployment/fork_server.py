"""The process that executors and their workers are forked from: it imports torch once for all of them."""

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
from executors.processes.forked_process import serve_forked
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
    """Starts executors by forking them from the server that this process is attached to, and that another
    process keeps running."""

    @property
    def services(self) -> Sequence[Service]:
        """Services that this object keeps running."""
        return ()

    @property
    def is_ready(self) -> bool:
        """Whether the server has imported all modules; before, a fork waits."""
        return True

    def deaths(self) -> int:
        """Return the number of deaths and restarts of the server since the last call.

        Raises:
            CommandError: the server keeps dying.
        """
        return 0

    def forked(self, name: str, environment: Mapping[str, str], function: str, *arguments: object) -> Launch:
        """Return a function that forks a process as soon as the server is ready.

        Args:
            name: Name of the process for tools.
            environment: Variables in addition to those of this process.
            function: `module:function` that the process calls.
        """

        def launch(log_path: Path) -> ServiceProcess:
            with log_path.open("ab") as log:
                surroundings = Surroundings.of_this_process({**os.environ, **environment}, log.fileno())
                called = (function, arguments, name, surroundings, STOP_TIMEOUT_S)
                return _Forked(_start(name, serve_forked, called))

        return launch


class ForkServer(Forks):
    """A server of this process, which imports the modules of all executors.

    Threads of its own restart it when it dies, because a fork waits for the next server in any thread.
    """

    def __init__(self, service: Service, listener: socket.socket, address: Path) -> None:
        """Describe a server that listens at `address`, to which this process is attached."""
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
        """Check that the server runs, or restarts.

        Raises:
            CommandError: the server keeps dying.
        """
        if self._fault is not None:
            raise self._fault

    def deaths(self) -> int:
        self.check()
        deaths, self._deaths = self._deaths, 0
        return deaths

    def start(self) -> None:
        self.service.start()
        self._keeping.start()
        self._probing.start()

    def stop(self) -> None:
        """Stop the server, after the processes that were forked from it."""
        self._is_over.set()
        self._keeping.join()
        self.service.stop()
        self._listener.close()  # ends the wait of forks for a server that has died
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
                with suppress(OSError, EOFError):  # the server has just died
                    _start("ready", int, ()).join()
                    self._is_ready.set()


@contextmanager
def fork_server(log_folder: Path, modules: Sequence[str] = _IMPORTED) -> Iterator[ForkServer]:
    """Run a fork server within the block. It imports its modules while the block runs."""
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
    """Forked process as a `ServiceProcess`."""

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
    """Fork a process that does not import the main module of this one."""
    process = _context.Process(target=target, args=arguments, name=name)
    with _starting:
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            process.start()
        finally:
            sys.modules["__main__"] = main
    return process
