"""The demo from end to end: a whole deployment, its scenes, and a replay of the log."""

import hashlib
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from infra.broker import watched_broker
from infra.demo.data import write_datasets, write_next_steps
from infra.demo.demo_cell import CELL_FILE, pace_of, write_cell
from infra.demo.demo_environment import Scene, Stage, default_model, running_stage
from infra.demo.experts import ExpertsScene, write_texts
from infra.demo.loans import LoanScene, lender_settings
from infra.demo.market import MarketScene
from infra.demo.merging import MergingScene, write_tasks
from infra.deployment.deployment import DeploymentSpec, principals, sole_user
from infra.deployment.deployment_folders import Folders, default_data_dir
from infra.deployment.fork_server import fork_server
from infra.deployment.settings_check import check_settings
from infra.errors import CommandError, disk_faults
from infra.figures.summary import Summary, summarise
from infra.kafka.docker import docker_answers
from infra.kafka.jars import kafka_jars
from infra.kafka.java import find_java
from infra.kafka.settings import BrokerSettings, broker_settings
from infra.log.target import Target
from infra.progress import Progress
from infra.workloads.arrivals import Arrival
from schemas.decisions import JobCompleted
from schemas.kafka_connection import KafkaConnection
from schemas.lora import Dataset
from streams.replay.export import export
from streams.replay.files import DECISIONS_FILE, LEDGER_FILE
from streams.replay.replay import Verdict
from streams.replay.sources import verify_kafka
from streams.worker.cells_file import load_cells

SceneName = Literal["market", "loan", "merging", "experts"]
POLICIES: Mapping[SceneName, tuple[str, ...]] = {
    "market": ("auction",),
    "loan": ("elastic", "inference"),
    "merging": ("merging",),
    "experts": ("experts",),
}
"""Policies of the zones that each scene needs, the market first."""
LEAST_PATIENCE_S, PATIENCE_S = 10.0, 600.0
_CELLS_FILE = "cells.yaml"
_PREFIX = "millrace"
_CHECKPOINT_S = "2"
_REPORTED_PACE = 1.1
"""Least pace that is reported."""
_BYTES_PER_MIB = 1024 * 1024
_LEAST_FREE_MIB = 256
"""Least free disk space: nodes go offline with less than 64 MiB, and adapters, checkpoints and logs need the
rest."""


_WEIGHTS = "adapter_model.safetensors"
_CONFIGURATION = "adapter_config.json"


@dataclass(frozen=True)
class DemoRequest:
    """Scenes to play, and their settings."""

    scenes: Sequence[SceneName]
    arrivals: Sequence[Arrival]
    seed: int = 0
    secure: bool = False
    patience_s: float = PATIENCE_S
    """Longest time without progress, at pace 1, before the demo fails."""


@dataclass(frozen=True)
class DemoResult:
    folders: Folders
    summary: Summary
    verdict: Verdict
    scenes: Mapping[SceneName, Scene]
    bids: Path
    """File of bids for the cell of `millrace up`."""
    faulty_adapters: list[str]
    """Jobs of bids whose adapter on disk differs from the log, or is missing."""
    first_decision_s: float | None
    first_adapter_s: float | None
    duration_s: float

    @property
    def market(self) -> MarketScene | None:
        """Scene of the auction, if it was played."""
        scene = self.scenes.get("market")
        return scene if isinstance(scene, MarketScene) else None

    @property
    def shortcomings(self) -> list[str]:
        """Lines about expected results that the demo did not have."""
        found = [fault for scene in self.scenes.values() for fault in scene.shortcomings]
        if self.faulty_adapters:
            found.append(f"adapters are not on disk as reported: {', '.join(self.faulty_adapters)}")
        if not self.verdict.ok:
            found.append("the replay does not verify")
        return found


def demo_folders() -> Folders:
    """Return the folders of the demo, which each demo empties first."""
    return Folders(default_data_dir().absolute() / "demo")


def run_demo(cells: Path, request: DemoRequest, progress: Progress, started_s: float) -> DemoResult:
    """Run the demo in `demo_folders`.

    Args:
        cells: Folder with the file of its cell.
        started_s: Start of the command, by the monotonic clock.

    Raises:
        BrokerError: no broker can be run.
        CommandError: a service does not start or keeps dying, or a scene fails.
        PublishError: the broker does not confirm an event.
        ReadError: the log cannot be read.
        ReplayError: the log cannot be read again.
    """
    folders = demo_folders()
    with sole_user(folders):
        settings = _checked_settings(folders, cells / CELL_FILE)
        _empty(folders)
        datasets, pace = _cut_data(folders, progress)
        settings = _own_broker(settings, request, pace, progress)
        policies = {policy for scene in request.scenes for policy in POLICIES[scene]}
        cells_file = folders.root / _CELLS_FILE
        write_cell(cells / CELL_FILE, cells_file, policies, pace)
        progress.awaits("the Kafka broker")
        with (
            fork_server(folders.logs) as server,
            default_model(folders, server) as await_model,
            watched_broker(settings, ephemeral=True) as broker,
        ):
            progress.show(
                f"broker answers at {broker.bootstrap_servers}{', secured' if request.secure else ''}"
            )
            connections = principals(broker, _PREFIX)
            targets = {role: Target(connection, _PREFIX) for role, connection in connections.items()}
            layout = DeploymentSpec(
                cells_file,
                folders,
                targets["operators"],
                connections=connections,
                # Executors of later scenes would slow down the first one.
                first_zones=_zones(cells_file, POLICIES[request.scenes[0]]),
                settings={**lender_settings(pace), "MILLRACE_CHECKPOINT_S": _CHECKPOINT_S},
            )
            with running_stage(layout, server, targets, progress, request.patience_s * pace) as stage:
                scenes = _play(stage, request, datasets, await_model, connections["auditor"])
            verdict = _verify(connections["auditor"], progress)
            with disk_faults(folders.root):
                files = folders.root / LEDGER_FILE, folders.root / DECISIONS_FILE
                export(connections["auditor"], _PREFIX, *files, verdict.settled)
            bids = write_next_steps(folders, datasets[0], Folders(default_data_dir().absolute()))
            progress.awaits("the broker and the fork server to stop")
        progress.awaits()
        market = scenes.get("market")
        completed = market.completed if isinstance(market, MarketScene) else []
        return DemoResult(
            folders=folders,
            summary=summarise(stage.board),
            verdict=verdict,
            scenes=scenes,
            bids=bids,
            faulty_adapters=faulty_adapters(folders.adapters, completed),
            first_decision_s=_since(started_s, stage.first_decision_s),
            first_adapter_s=_since(started_s, stage.first_adapter_s),
            duration_s=time.monotonic() - started_s,
        )


def _own_broker(
    settings: BrokerSettings, request: DemoRequest, pace: float, progress: Progress
) -> BrokerSettings:
    """Return the settings of the demo's broker, from those of the environment."""
    if settings.bootstrap_servers is not None:
        progress.show("MILLRACE_BOOTSTRAP_SERVERS is not used: the demo runs a broker of its own")
    return settings.model_copy(
        update={
            "bootstrap_servers": None,
            "broker_secure": request.secure or settings.broker_secure,
            "broker_start_timeout_s": settings.broker_start_timeout_s * pace,
        }
    )


def _play(
    stage: Stage,
    request: DemoRequest,
    datasets: tuple[Dataset, ...],
    await_model: Callable[[], None],
    auditor: KafkaConnection,
) -> dict[SceneName, Scene]:
    """Play the market, verify the log, and then play the others."""
    progress = stage.progress
    makers: dict[SceneName, Callable[[], Scene]] = {
        "market": lambda: MarketScene(stage, request.arrivals, request.seed, datasets),
        "loan": lambda: LoanScene(stage, datasets[0]),
        "merging": lambda: MergingScene(stage),
        "experts": lambda: ExpertsScene(stage),
    }
    scenes = {name: make() for name, make in makers.items() if name in request.scenes}
    others = [scene for name, scene in scenes.items() if name != "market"]
    if "market" in scenes:
        stage.play([scenes["market"]])
        _refuse_shortcomings(scenes["market"])
    if others:
        if "market" in scenes:
            _verify(auditor, progress)
        progress.awaits("the small base model")
        await_model()
        stage.play(others)
        for scene in others:
            _refuse_shortcomings(scene)
    progress.awaits()
    stage.drain(list(scenes.values()))
    return scenes


def _refuse_shortcomings(scene: Scene) -> None:
    if faults := scene.shortcomings:
        raise CommandError("; ".join(faults))


def _verify(auditor: KafkaConnection, progress: Progress) -> Verdict:
    progress.awaits("the replay of the log")
    verdict = verify_kafka(auditor, _PREFIX)
    found = "every decision follows from it" if verdict.ok else "NOT VERIFIED"
    progress.show(f"*** the log is replayed: {found}, {verdict.events} events, {verdict.decisions} decisions")
    progress.awaits()
    return verdict


def _zones(cells_file: Path, policies: Collection[str]) -> list[str]:
    """Return the zones of these policies in the demo's cell."""
    (cell,) = load_cells(cells_file, epoch_s=0.0)
    return [zone.id for zone in cell.zones if zone.policy.kind in policies]


def _cut_data(folders: Folders, progress: Progress) -> tuple[tuple[Dataset, ...], float]:
    """Write the data of all scenes; return the bids' datasets, and the pace of this machine."""
    start_s = time.monotonic()
    datasets = write_datasets(folders.datasets, 0)
    write_tasks(folders.datasets)
    write_texts(folders.datasets)
    cutting_s = time.monotonic() - start_s
    progress.show(f"the data is cut from Python's standard library, in {cutting_s:.1f} s")
    pace = pace_of(cutting_s)
    if pace >= _REPORTED_PACE:
        progress.show(
            f"this machine is slow or busy: the demo's slots and time limits are {pace:.1f} times as long"
        )
    return datasets, pace


def _checked_settings(folders: Folders, cells_file: Path) -> BrokerSettings:
    """Check all that can be checked before a demo starts, and return the environment's settings of a broker.
    If a check fails, the files of the last demo are kept."""
    folders.create()
    _check_room(folders)
    check_settings(load_cells(cells_file, epoch_s=0.0), folders, run_executors=True)
    settings = broker_settings()
    if not docker_answers():
        find_java()
        if (folders.root / _CELLS_FILE).exists():
            kafka_jars(settings)
    return settings


def _empty(folders: Folders) -> None:
    folders.clear()
    with disk_faults(folders.root):
        for folder in (folders.datasets, folders.models):
            shutil.rmtree(folder, ignore_errors=True)
    folders.create()


def _check_room(folders: Folders) -> None:
    free_mib = shutil.disk_usage(folders.root).free // _BYTES_PER_MIB
    if free_mib < _LEAST_FREE_MIB:
        raise CommandError(
            f"{folders.root} has {free_mib} MiB free, and the demo needs {_LEAST_FREE_MIB} MiB: "
            "make room, or set MILLRACE_DATA_DIR to another folder"
        )


def _since(started_s: float, time_s: float | None) -> float | None:
    return None if time_s is None else time_s - started_s


def faulty_adapters(root: Path, completed: Iterable[JobCompleted]) -> list[str]:
    """Return the jobs whose adapter on disk differs from the log, or is missing."""
    return [job.job_id for job in completed if not _is_whole(root, job)]


def _is_whole(root: Path, job: JobCompleted) -> bool:
    if job.adapter_path is None:
        return False
    folder = root / job.adapter_path
    try:
        weights = (folder / _WEIGHTS).read_bytes()
    except OSError:
        return False
    return (folder / _CONFIGURATION).is_file() and hashlib.blake2b(
        weights, digest_size=32
    ).hexdigest() == job.adapter_digest
