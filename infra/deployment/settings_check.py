"""Check of the settings of all services of a deployment and of its broker, before anything is started."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from executors.node import ExecutorSettings
from executors.node.runner import UnfitError, find_runners
from infra.deployment.cells import first_layout
from infra.deployment.deployment_folders import Folders
from infra.deployment.executors import executor_environment, served_nodes
from infra.errors import CommandError
from infra.kafka.settings import broker_settings
from infra.lender.service import LenderSettings
from schemas.cells import CellConfigured
from schemas.errors import MissingExtraError, require_extra
from schemas.installed import KINDS
from schemas.kafka_connection import KafkaConnection
from schemas.service_base import SETTINGS_FAULTS, ServiceSettings, described_fault
from streams.kafka.faults import BrokerError
from streams.solver.service import SolverSettings
from streams.worker.settings import WorkerSettings

_GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Devices of NVIDIA, of Windows' subsystem for Linux, and of AMD: torch names all of them `cuda`."""
_CONNECTION = KafkaConnection().as_fields()
"""Default connection: the real one is checked once a broker runs."""


def check_settings(cells: Sequence[CellConfigured], folders: Folders, run_executors: bool) -> None:
    """Check that each service could start with the environment's variables.

    Args:
        cells: Cells of the file; other nodes and zones of the log are still unknown.
        run_executors: Whether executors are checked too.

    Raises:
        CommandError: settings of a service are invalid, or its libraries missing; the line names each fault.
    """
    faults = dict.fromkeys(_faults(cells, folders, run_executors))
    if faults:
        raise CommandError("; ".join(faults))


def _faults(cells: Sequence[CellConfigured], folders: Folders, run_executors: bool) -> Iterator[str]:
    try:
        broker_settings()
    except BrokerError as error:
        yield str(error)
    kinds: dict[str, type[ServiceSettings]] = {"worker": WorkerSettings}
    zones = [zone for cell in cells for zone in cell.zones]
    if any(KINDS[zone.policy.kind].solves for zone in zones):
        kinds["solver"] = SolverSettings
    if any(zone.lending is not None for zone in zones):
        kinds["lender"] = LenderSettings
    for name, kind in kinds.items():
        try:
            require_extra(name)
            kind(**_CONNECTION)
        except MissingExtraError as error:
            yield f"the {name} cannot run: {error}"
        except SETTINGS_FAULTS as error:
            yield f"settings of the {name}: {described_fault(error)}"
    if not run_executors:
        return
    yield from _device_faults(os.environ.get("MILLRACE_DEVICE", "cpu"))
    for cell in cells:
        layout = first_layout(cell)
        environments = {
            tuple(executor_environment(layout, node, folders).items()): node
            for node in served_nodes(layout, folders)
        }
        for environment, node in environments.items():
            yield from _executor_faults(cell.cell, node, dict(environment))


def has_gpu_driver() -> bool:
    """Return whether this machine may have a GPU that torch could use."""
    return sys.platform != "linux" or any(Path(file).exists() for file in _GPU_DEVICES)


def _device_faults(device: str) -> Iterator[str]:
    """Check that the machine may have the GPU. Executors check at their start whether torch can use it."""
    if device.startswith("cuda") and not has_gpu_driver():
        yield f"settings of executors: device: {device}, and this machine has no driver of a GPU: use cpu"


def _executor_faults(cell: str, node: str, environment: Mapping[str, str]) -> Iterator[str]:
    with _variables(environment):
        try:
            find_runners(ExecutorSettings(**_CONNECTION, cell=cell, node=node))
        except SETTINGS_FAULTS as error:
            yield f"settings of executors: {described_fault(error)}"
        except UnfitError as error:
            yield f"executors: {error}"


@contextmanager
def _variables(changed: Mapping[str, str]) -> Iterator[None]:
    """Change the environment within the block."""
    before = dict(os.environ)
    os.environ.update(changed)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
