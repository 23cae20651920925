"""The demo from end to end: a whole deployment, scenes of all policies beside each other, and a replay."""

import ast
import hashlib
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
from infra.demo import library
from infra.demo.experts import ExpertsScene, write_texts
from infra.demo.loans import HASTE, LoanScene
from infra.demo.market import Market
from infra.demo.merging import MergingScene, write_tasks
from infra.demo.models import default_model
from infra.demo.show import Show
from infra.demo.stage import running_stage
from infra.deployment.deployment import Layout, principals, sole_user
from infra.deployment.folders import Folders
from infra.kafka.settings import broker_settings
from infra.log.target import Target
from infra.views.summary import Summary, summarise
from infra.workloads.arrivals import Arrival
from infra.workloads.auction.bids import BidDraw, Demands, draw_quotes
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
    modules_root = Path(sysconfig.get_paths()["stdlib"])
    datasets = []
    for subject, modules in sorted(_MODULES.items()):
        texts = [text for module in modules for text in _definitions(modules_root / f"{module}.py")]
        texts = random.Random(f"{seed}/{subject}").sample(texts, min(_RECORDS, len(texts)))
        path = root / f"{subject}.jsonl"
        library.write_texts(path, texts)
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
SCENES_LIMIT_S = 230.0
NODES_READY_S = 180.0
"""The first start ever makes the base model."""
CELL_FILE = "four-zones.yaml"

_PREFIX = "millrace"
_LEAD_S = 1.0
_QUIET_S = 1.0
_DRAIN_S = 5.0
_SETTINGS: Mapping[str, str] = {**HASTE, "MILLRACE_CHECKPOINT_S": "2"}
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
    market: Market
    loan: LoanScene
    merging: MergingScene
    experts: ExpertsScene
    faulty_adapters: list[str]
    """Jobs of bids whose adapter is not on disk as the log has it."""
    duration_s: float

    @property
    def shortcomings(self) -> list[str]:
        """What the demo was to show and did not."""
        found = []
        if (adapters := len(self.market.completed)) < LEAST_ADAPTERS:
            found.append(f"only {adapters} bids ended with an adapter, {LEAST_ADAPTERS} are due")
        if self.faulty_adapters:
            found.append(f"adapters are not on disk as reported: {', '.join(self.faulty_adapters)}")
        for scene in (self.market, self.loan, self.merging, self.experts):
            found += scene.shortcomings
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
        cells: the folder with the file of its cell.

    Raises:
        BrokerError: no broker can be run.
        CommandError: a service does not come up, or dies again and again.
        PublishError: the broker does not take an event.
        ReadError: the log cannot be read.
        ReplayError: the log cannot be read again.
    """
    with _folders(keep, show.say) as folders, sole_user(folders):
        datasets = write_datasets(folders.datasets, seed)
        write_tasks(folders.datasets)
        write_texts(folders.datasets)
        show.say("datasets are cut from Python's standard library")
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
            layout = Layout(
                cells / CELL_FILE, folders, targets["operators"], connections=connections, settings=_SETTINGS
            )
            with (
                default_model(folders.models) as has_model,
                running_stage(layout, targets, show) as stage,
            ):
                show.say("executors load torch and the base model")
                has_model()
                stage.await_nodes(NODES_READY_S)
                demands = replace(_DEMANDS, datasets=datasets)
                quotes = draw_quotes(stage.cell, seed)
                draw = BidDraw(stage.cell, stage.zone("auction"), quotes, seed, demands)
                bids = draw.jobs(arrivals, time.time() + _LEAD_S)
                show.say(f"{len(bids)} bids arrive over {arrivals[-1].offset_s:.0f} s")
                market = Market(stage, bids, quotes)
                loan, merging = LoanScene(stage, datasets[0]), MergingScene(stage)
                experts = ExpertsScene(stage)
                scenes = (market, loan, merging, experts)
                stage.play(scenes, time.monotonic() + SCENES_LIMIT_S)
                stage.drain(scenes, _QUIET_S, time.monotonic() + _DRAIN_S)
            show.say("folding the ledger again")
            verdict = verify_kafka(connections["auditor"], _PREFIX)
        return DemoResult(
            summary=summarise(stage.board),
            verdict=verdict,
            market=market,
            loan=loan,
            merging=merging,
            experts=experts,
            faulty_adapters=faulty_adapters(folders.adapters, market.completed),
            duration_s=time.monotonic() - started_s,
        )


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
