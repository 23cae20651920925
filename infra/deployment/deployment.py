"""Starting and stopping a whole deployment."""

import os
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from types import FrameType

from infra.broker import RunningBroker
from infra.deployment.cells import PresentCell, configure_cells, present_cells
from infra.deployment.deployment_folders import Address, Folders, published_address
from infra.deployment.executors import executor_environment, served_nodes
from infra.deployment.fork_server import Forks, fork_server
from infra.deployment.service import Service, command
from infra.errors import CommandError
from infra.kafka.files import FileLock, LockedError
from infra.log.reader import LogReader, decisions_in, events_in
from infra.log.target import Target
from infra.topics import apply_grants, ensure_topics, grants
from schemas.access import DEFAULT_GROUPS
from schemas.cells import CellConfigured
from schemas.clock import ClockTicked
from schemas.decisions import NodeMoved
from schemas.installed import KINDS
from schemas.interpreters import python_command
from schemas.kafka_connection import KafkaConnection
from schemas.kind import ROLES, Role
from schemas.topics import DECISIONS, LEDGER, topics
from streams.kafka.reader import ReadError
from streams.worker.cells_file import CellsFile

WORKER_READY_S = 600.0
"""Time for a worker to accept its cells: it takes seconds on an idle machine, and minutes on a busy one."""
EXECUTOR_RETRY_S = 60.0
_POLL_S = 0.5


def principals(broker: RunningBroker, prefix: str) -> dict[Role, KafkaConnection]:
    """Return the connection of each role. On a secured local broker, grant the roles' permissions first.

    Raises:
        BrokerError: the broker does not answer.
    """
    if broker.credentials is not None:
        groups = {
            role: os.environ.get(f"MILLRACE_{role.upper()}_GROUP") or group
            for role, group in DEFAULT_GROUPS.items()
        }
        apply_grants(broker.connection("admin"), grants(prefix, groups=groups))
    return {role: broker.connection(role) for role in ROLES}


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM, as on SIGINT, within the block."""
    interrupted = False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    # A shell lets its background processes ignore SIGINT.
    numbers = [
        number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not signal.SIG_IGN
    ]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    except SystemError:
        # The Kafka client may lose an exception that is raised while it polls.
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class DeploymentSpec:
    """Services to run, and their places."""

    cells_file: Path
    folders: Folders
    target: Target
    """Log, and the connection of the operators."""
    executor_threads: int = 1
    run_executors: bool = True
    connections: Mapping[Role, KafkaConnection] = field(default_factory=dict)
    """Connections of other roles that are not those of the operators."""
    credentials: Path | None = None
    """Folder of the roles' passwords, published for commands on the same machine."""
    first_zones: Collection[str] | None = None
    """Zones whose executors start with the deployment; None for all. `start_executors` starts the others."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of all services, for settings that differ from their defaults."""
    node_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Environment variables of executors by node, which precede those of all services."""

    @property
    def worker_name(self) -> str:
        """Name of the worker, the same after a restart: the broker then need not wait for the timeout of the
        one that died. No other deployment on the same cluster has this name."""
        place = f"{socket.gethostname()}:{self.folders.root.absolute()}"
        return f"up-{blake2b(place.encode(), digest_size=8).hexdigest()}"

    def connection(self, role: Role) -> KafkaConnection:
        return self.connections.get(role, self.target.kafka)


@dataclass
class Deployment:
    """The services of a specification, on a running broker. `running` starts and stops them."""

    spec: DeploymentSpec
    report: Callable[[str], None]
    """Prints a line about the progress."""
    fork_server: Forks | None = None
    """Server that executors are forked from; None starts one."""
    awaits: Callable[[str], None] = lambda _awaited: None
    """Shows what is awaited; replaced by the next call."""
    cells: list[CellConfigured] = field(default_factory=list)
    """Configurations in the ledgers; set once the deployment runs."""
    worker: Service = field(init=False)
    clock: Service = field(init=False)
    solvers: list[Service] = field(default_factory=list)
    """One solver if the policy of any zone needs one."""
    lenders: list[Service] = field(default_factory=list)
    """Lenders, one for each zone that lends."""
    executors: dict[tuple[str, str], Service] = field(default_factory=dict)
    """Executors by cell and node."""
    _present: Mapping[str, PresentCell] = field(default_factory=dict)
    """States of the cells at the first start of executors."""
    _due: list[tuple[str, str]] = field(default_factory=list)
    """Cell and node of executors to start once the fork server is ready."""
    _retry_s: dict[tuple[str, str], float] = field(default_factory=dict)
    """Time of the next start of executors that keep failing, by the monotonic clock."""
    _decisions: LogReader | None = None
    """Reader of the decisions about nodes that leave; None where no executors run."""

    @property
    def services(self) -> list[Service]:
        server = () if self.fork_server is None else self.fork_server.services
        return [*server, self.worker, *self.solvers, self.clock, *self.lenders, *self.executors.values()]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the services within the block: topics, worker, cells, a solver if a zone's policy needs one,
        clock, a lender for each zone that lends, and executors.

        Lenders and the clock stop first, so no slot starts during shutdown.

        Raises:
            CellsFileError: the file of cells is invalid.
            CommandError: a service does not start.
            BrokerError: a topic is missing or has other settings.
        """
        spec = self.spec
        ensure_topics(spec.target.kafka, topics(spec.target.prefix))
        with ExitStack() as stack:
            ledger = stack.enter_context(LogReader(spec.target, [spec.target.topic(LEDGER)], "end"))
            if spec.run_executors and self.fork_server is None:
                self.fork_server = stack.enter_context(fork_server(spec.folders.logs))
            name = os.environ.get("MILLRACE_WORKER_NAME") or spec.worker_name
            self.worker = self._service(
                "worker", "worker", ["streams.worker"], {"MILLRACE_WORKER_NAME": name}
            )
            stack.callback(self.worker.stop)
            self.awaits("the worker")
            self.worker.start()
            self.report("worker starts")
            # It waits for the cells by itself, and imports its modules while the worker does.
            self.clock = self._service("clock", "operators", ["infra.cli", "clock", str(spec.cells_file)], {})
            stack.callback(self.clock.stop)
            self.clock.start()
            self._configure()
            if spec.run_executors:
                # Positioned before the nodes are read, so no departure is missed.
                decisions = LogReader(spec.target, [spec.target.topic(DECISIONS)], "end")
                self._decisions = stack.enter_context(decisions)
            log = present_cells(spec.target)
            present = {cell.cell: log[cell.cell] for cell in self.cells}
            zones = (zone for cell in present.values() for zone in cell.nodes.zones.values())
            if any(KINDS[zone.policy.kind].solves for zone in zones):
                self._start_solver(stack)
            stack.callback(self._stop_executors)
            # Of the services that run now, it stops first.
            stack.callback(self.clock.stop)
            self._start_lenders(present, stack)
            self._await_ticks(ledger)
            # Not before: a bid for a cell without a configuration is rejected, and one for a cell without a
            # tick is planned for slots that are over.
            address = Address(spec.target.kafka.bootstrap_servers, spec.credentials)
            stack.enter_context(published_address(spec.folders, address))
            if spec.run_executors:
                self._present = present
                self.start_executors(spec.first_zones)
            stack.callback(self.report, "stopping")
            yield

    def keep_running(self) -> None:
        """Restart services that have died, and stop the executors of nodes that have left their cells. An
        executor that keeps failing is retried after `EXECUTOR_RETRY_S`.

        Raises:
            CommandError: another service keeps failing, or all executors do.
        """
        if self.fork_server is not None and self.fork_server.deaths():
            self.report("fork-server died and is started again, and so are the executors that died with it")
        for service in (self.worker, *self.solvers, self.clock, *self.lenders):
            if service.keep_running():
                self.report(f"{service.name} died and is started again")
        self._stop_departed()
        if self.fork_server is not None and not self.fork_server.is_ready:
            return  # a start of an executor would wait for it
        self._start_due()
        for place, executor in self.executors.items():
            if self._retry_s.get(place, 0.0) > time.monotonic():
                continue
            try:
                if executor.keep_running():
                    self.report(f"{executor.name} died and is started again")
            except (CommandError, OSError) as error:
                self._suspend(place, error)

    def _suspend(self, place: tuple[str, str], error: Exception) -> None:
        """Run without a failing executor until its retry; the cell plans without a silent node.

        Raises:
            CommandError: no other executor runs.
        """
        now_s = time.monotonic()
        if all(self._retry_s.get(other, 0.0) > now_s for other in self.executors if other != place):
            raise CommandError(str(error)) from None
        self._retry_s[place] = now_s + EXECUTOR_RETRY_S
        self.report(f"{error}; the others go on, and it is tried again in {EXECUTOR_RETRY_S:.0f} s")
        self.executors[place].allow_restart()

    def _configure(self) -> None:
        spec = self.spec
        cells_file = CellsFile.read(spec.cells_file)
        configured = configure_cells(
            spec.target, cells_file, time.time(), WORKER_READY_S, self.worker.check_running
        )
        for cell in configured:
            name = cell.configuration.cell
            if cell.differs:
                self.report(
                    f"cell {name} goes on as it is: {spec.cells_file} differs from its first "
                    "configuration, and `millrace zone` and `millrace nodes` change a running cell"
                )
            elif cell.is_new:
                self.report(f"cell {name} is configured")
            else:
                self.report(f"cell {name} goes on")
        self.cells = [cell.configuration for cell in configured]

    def _await_ticks(self, ledger: LogReader) -> None:
        """Return when the ledger has a tick of each cell since this start."""
        self.awaits("the clock")
        waiting = {cell.cell for cell in self.cells}
        while waiting:
            self.keep_running()
            with suppress(ReadError):  # the broker restarts
                ticks = events_in(ledger.poll(_POLL_S), ClockTicked)
                waiting -= {tick.event.cell for tick in ticks}
        self.report("clock runs")

    def _start_solver(self, stack: ExitStack) -> None:
        solver = self._service("solver", "solver", ["streams.solver"], {})
        self.solvers.append(solver)
        stack.callback(solver.stop)
        solver.start()
        self.report("solver starts")

    def _start_lenders(self, present: Mapping[str, PresentCell], stack: ExitStack) -> None:
        for cell, now in present.items():
            for zone in now.nodes.zones.values():
                if zone.lending is None:
                    continue
                arguments = ["infra.cli", "lender", "--cell", cell, "--zone", zone.id]
                lender = self._service(f"lender-{cell}-{zone.id}", "inference", arguments, {})
                self.lenders.append(lender)
                stack.callback(lender.stop)
                lender.start()
                self.report(f"lender of zone {zone.id} in cell {cell} starts")

    def start_executors(self, zones: Collection[str] | None = None) -> None:
        """Start the executors of these zones' nodes that were not started before, by default of all."""
        folders = self.spec.folders
        assert self.fork_server is not None, "executors need a fork server"
        for cell, now in self._present.items():
            for node in served_nodes(now, folders):
                if (cell, node) in self.executors or not (
                    zones is None or now.nodes.by_id[node].owner in zones
                ):
                    continue
                environment = {
                    **self._environment("nodes"),
                    **executor_environment(now, node, folders),
                    "MILLRACE_CELL": cell,
                    "MILLRACE_THREADS": str(self.spec.executor_threads),
                    **self.spec.node_settings.get(node, {}),
                }
                launch = self.fork_server.forked(node, environment, "executors.node.process:serve", node)
                self.executors[cell, node] = Service(f"executor-{cell}-{node}", launch, folders.logs)
                self._due.append((cell, node))
        self._start_due()

    def _start_due(self) -> None:
        if self.fork_server is not None and self.fork_server.is_ready:
            due, self._due = self._due, []
            for cell, node in due:
                if executor := self.executors.get((cell, node)):  # it may have left the cell since
                    executor.start()
                    self.report(f"executor of {node} in cell {cell} starts")

    def _stop_departed(self) -> None:
        """Stop the executors of nodes that have left their cells: their reports would be rejected."""
        if self._decisions is None:
            return
        with suppress(ReadError):  # the broker restarts
            while records := self._decisions.poll(0.0):
                for decision in decisions_in(records, NodeMoved):
                    if isinstance(decision.outcome, NodeMoved) and decision.outcome.to_zone is None:
                        executor = self.executors.pop((decision.cell, decision.outcome.node), None)
                        if executor is not None:
                            executor.stop()
                            self.report(f"{executor.name} is stopped: its node has left the cell")

    def _stop_executors(self) -> None:
        if self.executors:
            with ThreadPoolExecutor(len(self.executors)) as threads:
                list(threads.map(Service.stop, self.executors.values()))

    def _service(self, name: str, role: Role, arguments: list[str], environment: dict[str, str]) -> Service:
        launch = command(python_command("-m", *arguments), {**self._environment(role), **environment})
        return Service(name, launch, self.spec.folders.logs)

    def _environment(self, role: Role) -> dict[str, str]:
        spec = self.spec
        return {
            **spec.connection(role).environment(),
            "MILLRACE_TOPIC_PREFIX": spec.target.prefix,
            "MILLRACE_DATA_DIR": str(spec.folders.root),
            "MILLRACE_CELLS_FILE": str(spec.cells_file),
            **spec.settings,
        }


@contextmanager
def sole_user(folders: Folders) -> Iterator[None]:
    """Hold a deployment's folders within the block.

    Raises:
        CommandError: another process holds them, or they cannot be made.
    """
    folders.create()
    try:
        with FileLock(folders.lock).held():
            yield
    except LockedError as error:
        raise CommandError(f"process {error.holder} runs the deployment in {folders.root} already") from None
