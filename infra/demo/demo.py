"""The demo from end to end: a whole deployment, a crash in between, a loan, a merge, and a replay."""

import ast
import hashlib
import json
import random
import shutil
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp

from infra.broker import watched_broker
from infra.demo.loans import HASTE, LoanScene, default_model
from infra.demo.market import Market, Show
from infra.demo.merging import SETTINGS, MergingScene, write_tasks
from infra.demo.stage import running_stage
from infra.deployment.deployment import Deployment, Layout, principals, sole_user
from infra.deployment.folders import Folders
from infra.kafka.settings import broker_settings
from infra.log.publisher import EventPublisher
from infra.log.reader import BoardFollower
from infra.log.target import Target
from infra.views.summary import Summary, summarise
from infra.workloads.arrivals import Arrival
from infra.workloads.auction.bids import Demands, Workload, draw_workload
from schemas.access import Role
from schemas.cells import CellConfigured
from schemas.decisions import JobCompleted
from schemas.lora import Dataset
from streams.replay.replay import Verdict
from streams.replay.sources import verify_kafka

_WEIGHTS = "adapter_model.safetensors"
_CONFIGURATION = "adapter_config.json"


def faulty_adapters(root: Path, completed: Iterable[JobCompleted]) -> list[str]:
    """The jobs whose adapter is not on disk as the log has it."""
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


_SHORTEST = 80
_LONGEST = 400
_RECORDS = 24
"""Few, so that a short training goes over them several times and the loss falls."""
_MODULES = {
    "language": ("ast", "dis", "inspect", "tokenize", "typing"),
    "data": ("collections/__init__", "dataclasses", "enum", "json/decoder", "statistics"),
    "files": ("pathlib", "shutil", "tarfile", "tempfile", "zipfile"),
    "network": ("ftplib", "http/client", "smtplib", "socketserver", "ssl"),
    "processes": ("asyncio/base_events", "queue", "subprocess", "threading", "concurrent/futures/thread"),
    "text": ("argparse", "difflib", "string", "textwrap", "configparser"),
}


def write_datasets(root: Path, seed: int) -> tuple[Dataset, ...]:
    """Write one JSONL file per subject below `root`: some functions and classes of its modules."""
    library = Path(sysconfig.get_paths()["stdlib"])
    datasets = []
    for subject, modules in sorted(_MODULES.items()):
        texts = [text for module in modules for text in _definitions(library / f"{module}.py")]
        texts = random.Random(f"{seed}/{subject}").sample(texts, min(_RECORDS, len(texts)))
        path = root / f"{subject}.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        datasets.append(Dataset(path=path.name, samples=len(texts)))
    return tuple(datasets)


def _definitions(path: Path) -> Iterator[str]:
    if not path.is_file():
        return
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            text = "".join(lines[node.lineno - 1 : node.end_lineno])
            if len(text) >= _SHORTEST:
                yield text[:_LONGEST]


LEAST_ADAPTERS = 6
MARKET_LIMIT_S = 200.0
NODES_READY_S = 180.0
"""The first start ever makes the base model."""

_PREFIX = "millrace"
_LEAD_S = 1.0
_QUIET_S = 1.0
_DRAIN_S = 5.0
_DEMANDS = Demands(
    median_work_slots=4.0,
    longest_work_slots=6.0,
    # High, and on every layer: in so few steps the losses shall be seen to fall.
    learning_rates=(5e-3, 1e-2),
    target_modules=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
)


@dataclass(frozen=True)
class DemoResult:
    """What the demo showed."""

    summary: Summary
    verdict: Verdict
    finished: bool
    """Whether every job was over in time."""
    killed_node: str | None
    returned: bool
    """Whether the killed executor's node came online again."""
    recovered: bool
    """Whether it trained again after that."""
    faulty_adapters: list[str]
    """Jobs whose adapter is not on disk as the log has it."""
    loan_shortcomings: list[str]
    """Of the second scene."""
    merging_shortcomings: list[str]
    """Of the third."""
    merging_told: str
    """What the third has shown, in a line."""
    duration_s: float

    @property
    def shortcomings(self) -> list[str]:
        """What the demo was to show and did not."""
        found = []
        if len(self.summary.adapters) < LEAST_ADAPTERS:
            found.append(f"only {len(self.summary.adapters)} adapters were trained, {LEAST_ADAPTERS} are due")
        if not self.finished:
            found.append(f"not every job was over after {MARKET_LIMIT_S:g} s")
        if self.faulty_adapters:
            found.append(f"adapters are not on disk as reported: {', '.join(self.faulty_adapters)}")
        if self.killed_node is None:
            found.append("no executor was killed")
        elif not self.recovered and not self.returned:
            found.append(f"{self.killed_node} did not come online again after its executor was killed")
        elif not self.recovered:
            found.append(f"{self.killed_node} came online again after the kill and began no run since")
        found += self.loan_shortcomings + self.merging_shortcomings
        if not self.verdict.ok:
            found.append("the replay does not verify")
        return found


def run_demo(
    cells: Path,
    arrivals: list[Arrival],
    seed: int,
    show: Show,
    keep: bool,
    secure: bool,
    started_s: float,
) -> DemoResult:
    """Run the demo in folders of its own, which are removed at the end unless `keep`.

    Args:
        cells: the folder with the files of its cells, one for each scene.

    Raises:
        BrokerError: no broker can be run.
        CommandError: a service does not come up, or dies again and again.
        PublishError: the broker does not take an event.
        ReadError: the log cannot be read.
        ReplayError: the log cannot be read again.
    """
    with _folders(keep, show.say) as folders, sole_user(folders):
        datasets = write_datasets(folders.datasets, seed)
        show.say(f"{len(datasets)} datasets cut from Python's standard library")
        settings = broker_settings()
        settings = settings.model_copy(
            update={
                "bootstrap_servers": None,
                "broker_data_dir": folders.broker,
                "broker_secure": secure or settings.broker_secure,
            }
        )
        with watched_broker(settings) as broker:
            show.say(f"broker answers at {broker.bootstrap_servers}{', secured' if secure else ''}")
            connections = principals(broker, _PREFIX)
            targets = {role: Target(connection, _PREFIX) for role, connection in connections.items()}
            layout = Layout(cells / "demo.yaml", folders, targets["operators"], connections=connections)
            deployment = Deployment(layout, show.say)
            demands = replace(_DEMANDS, datasets=datasets)
            with (
                EventPublisher(targets["users"], "millrace/demo") as bids,
                EventPublisher(targets["vendors"], "millrace/demo") as quotes,
                deployment.running(),
                BoardFollower(targets["auditor"]) as follower,
            ):
                (cell,) = deployment.cells
                market = Market(deployment, follower, bids, show, cell.cell)
                finished = _trade(market, quotes, cell, arrivals, seed, demands)
            loans = Layout(
                cells / "loans.yaml", folders, targets["operators"], connections=connections, settings=HASTE
            )
            loan_shortcomings = _lend(loans, targets, datasets[0], show)
            write_tasks(folders.datasets)
            tuning = Layout(
                cells / "tuning.yaml",
                folders,
                targets["operators"],
                connections=connections,
                settings=SETTINGS,
            )
            merging = _merge(tuning, targets, show)
            show.say("folding the ledger again")
            verdict = verify_kafka(connections["auditor"], _PREFIX)
        completed = [end for job in market.board.jobs.by_id.values() if (end := job.completed) is not None]
        return DemoResult(
            summary=summarise(market.board),
            verdict=verdict,
            finished=finished,
            killed_node=market.killed_node,
            returned=market.returned,
            recovered=market.recovered,
            faulty_adapters=faulty_adapters(folders.adapters, completed),
            loan_shortcomings=loan_shortcomings,
            merging_shortcomings=merging.shortcomings,
            merging_told=merging.told,
            duration_s=time.monotonic() - started_s,
        )


def _trade(
    market: Market,
    quotes: EventPublisher,
    cell: CellConfigured,
    arrivals: list[Arrival],
    seed: int,
    demands: Demands,
) -> bool:
    """Run the market from the moment that all executors can train until every job is over."""
    market.show.say("executors load torch and the base model")
    market.await_nodes(NODES_READY_S)
    workload: Workload = draw_workload(cell, arrivals, time.time() + _LEAD_S, seed, demands)
    for quote in workload.quotes:
        quotes.publish(quote)
    market.show.say(f"{len(workload.jobs)} bids arrive over {arrivals[-1].offset_s:.0f} s")
    deadline_s = time.monotonic() + MARKET_LIMIT_S
    finished = market.run(workload.jobs, deadline_s - _DRAIN_S)
    if finished:
        market.read(_QUIET_S)
    else:
        market.drain(_QUIET_S, deadline_s)
    return finished


def _lend(layout: Layout, targets: Mapping[Role, Target], dataset: Dataset, show: Show) -> list[str]:
    """Play the second scene, and say what is missing of it."""
    with (
        default_model(layout.folders.models) as has_model,
        EventPublisher(targets["inference"], "millrace/demo") as inference,
        running_stage(layout, targets, show) as stage,
    ):
        scene = LoanScene(stage, inference, dataset)
        scene.play(NODES_READY_S, has_model)
    return scene.shortcomings


def _merge(layout: Layout, targets: Mapping[Role, Target], show: Show) -> MergingScene:
    """Play the third scene."""
    with running_stage(layout, targets, show) as stage:
        scene = MergingScene(stage)
        scene.play(NODES_READY_S)
    return scene


@contextmanager
def _folders(keep: bool, say: Callable[[str], None]) -> Iterator[Folders]:
    root = Path(mkdtemp(prefix="millrace-demo-"))
    try:
        yield Folders(root)
    finally:
        if keep:
            say(f"kept in {root}")
        else:
            shutil.rmtree(root, ignore_errors=True)
