"""Data that are ordered, prepared, delivered and trained, by the real services on Kafka."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

import pytest
import yaml
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from infra.deployment.deployment_folders import Folders
from schemas.auction.bids import BidTerms, QuoteAccepted, VendorLeft, VendorQuoted
from schemas.auction.deliveries import (
    PreprocessingAccepted,
    PreprocessingClosed,
    PreprocessingDelivered,
    PreprocessingOrdered,
    delivery_path,
)
from schemas.auction.evidence import JobReplanned
from schemas.base import Outcome
from schemas.decisions import EventIgnored, JobAdmitted, JobRefunded
from schemas.fleet import RunStarted
from schemas.interpreters import python_command
from schemas.jobs import JobSubmitted
from schemas.lora import Dataset, Delivery, LoraHyperparameters, LoraWorkload
from schemas.lora_commands import SlotAssigned
from tests.integration.deployment import DEMO_CELLS, ROOT, UP_TIMEOUT_S
from tests.integration.watched_deployment import READY_S, WatchedDeployment, watched

pytestmark = pytest.mark.timeout(600)

RECORDS, COPIES, BAD_LINES = 60, 20, 3
WORDS = len(["sample", "number", "7", "of", "the", "data"])
"""Words of each record, which are tokens of the vendor's tokenizer."""


@pytest.fixture(scope="module")
def fleet(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedDeployment]:
    """The demo's cell with one node, whose zone orders pre-processing."""
    root = tmp_path_factory.mktemp("vendor")
    folders = Folders(root)
    folders.create()
    lines = [json.dumps({"text": f"sample number {number} of the data"}) for number in range(RECORDS)]
    lines += lines[:COPIES] + ["no json"] * BAD_LINES
    (folders.datasets / "raw.jsonl").write_text("".join(f"{line}\n" for line in lines))
    cells = yaml.safe_load(DEMO_CELLS.read_text())
    (cell,) = cells["cells"]
    (zone,) = cell["zones"]
    zone["nodes"] = zone["nodes"][:1]
    zone["gpu_types"], zone["throughput"] = zone["gpu_types"][:1], zone["throughput"][:2]
    zone["policy"] = {"kind": "auction", "deliveries": {}}
    (root / "cells.yaml").write_text(yaml.safe_dump(cells))
    with watched(WatchedDeployment, kafka, root / "cells.yaml", folders, {}, executors=1) as fleet:
        yield fleet


def quote(vendor: str, delay_s: float) -> VendorQuoted:
    return VendorQuoted(
        cell="demo",
        vendor=vendor,
        fixed_price_micros=250_000,
        price_per_thousand_samples_micros=0,
        fixed_delay_s=delay_s,
        delay_per_thousand_samples_s=0.0,
    )


def quotes(fleet: WatchedDeployment, vendor: str, delay_s: float) -> None:
    """Send a quote, and wait for its decision: bids are in another topic, and could overtake it."""
    before = len(fleet.decided(QuoteAccepted))
    fleet.send(quote(vendor, delay_s))
    fleet.until(lambda: fleet.decided(QuoteAccepted)[before:], f"{vendor} quotes")


def bid(job_id: str, deadline_in_s: float) -> JobSubmitted:
    return JobSubmitted(
        cell="demo",
        job_id=job_id,
        user="ann",
        zone="tiny",
        workload=LoraWorkload(
            work_samples=48,
            dataset=Dataset(path="raw.jsonl", samples=100),
            hyperparameters=LoraHyperparameters(rank=8, batch_size=8, sequence_length=32),
            needs_preprocessing=True,
        ),
        terms=BidTerms(bid_micros=50_000_000, deadline_s=time.time() + deadline_in_s),
    )


@contextmanager
def serving(
    fleet: WatchedDeployment, vendor: str, delay_s: float, log: Path, *options: str, status: int = 0
) -> Iterator[subprocess.Popen]:
    """The reference service as a process, which a SIGTERM ends with a status."""
    entry = quote(vendor, delay_s).model_dump(mode="json")
    file = log.with_suffix(".yaml")
    file.write_text(json.dumps([entry]))
    where = ["--bootstrap-servers", fleet.target.kafka.bootstrap_servers]
    arguments = [str(file), "--datasets", str(fleet.folders.datasets), "--topic-prefix", fleet.target.prefix]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*python_command("-m", "infra.cli"), "vendor", *arguments, *where, *options],
            cwd=ROOT,
            env=os.environ,
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(UP_TIMEOUT_S) == status, log.read_text()


def save_tokenizer(folder: Path) -> None:
    """A tokenizer of whole words, with a mark at the beginning that belongs to no record."""
    words = ["<unknown>", "<begin>", "sample", "number", "of", "the", "data"]
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, "<unknown>"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unknown>", bos_token="<begin>"
    ).save_pretrained(folder)


def of(fleet: WatchedDeployment, kind: type[Outcome], job_id: str) -> Callable[[], list[Outcome]]:
    """The decisions of a kind about a job."""
    return lambda: [one for one in fleet.decided(kind) if getattr(one, "job_id", None) == job_id]


def test_ordered_data_are_delivered_and_trained(fleet: WatchedDeployment, tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "tokenizer")
    options = ("--tokenizer", str(tmp_path / "tokenizer"))
    with serving(fleet, "cleaners", 2.0, tmp_path / "vendor.log", *options) as process:
        fleet.until(lambda: fleet.decided(QuoteAccepted), "the service quotes")
        fleet.send(bid("prompt", 60.0))
        fleet.until(lambda: fleet.completed("prompt"), "the job is done", READY_S)
        assert process.poll() is None
    (order,) = of(fleet, PreprocessingOrdered, "prompt")()
    (accepted,) = of(fleet, PreprocessingAccepted, "prompt")()
    assert (order.vendor, accepted.paid_micros) == ("cleaners", order.price_micros)
    delivery = accepted.delivery
    made = (fleet.folders.datasets / delivery.path).read_bytes()
    assert delivery.digest == blake2b(made, digest_size=32).hexdigest()
    assert delivery.samples == made.count(b"\n") == RECORDS
    counted = (fleet.folders.datasets / f"{delivery.path}.tokens").read_text()
    assert json.loads(counted) == [WORDS] * RECORDS
    runs = [run for slot in fleet.decided(SlotAssigned) for run in slot.runs if run.job_id == "prompt"]
    assert {run.delivery for run in runs} == {delivery}
    assert {begun.dataset_samples for begun in fleet.events(RunStarted)} == {RECORDS}
    fleet.until(lambda: fleet.events(VendorLeft), "the stopped service withdraws its quote")
    fleet.assert_proven()


def test_service_of_an_unlisted_vendor_ends(fleet: WatchedDeployment, tmp_path: Path) -> None:
    log = tmp_path / "stranger.log"
    with serving(fleet, "strangers", 0.0, log, status=1) as process:
        assert process.wait(UP_TIMEOUT_S) == 1
    assert "quote ignored (unknown_vendor): the cell has no vendor strangers" in log.read_text()


@pytest.mark.slow
def test_late_and_missing_deliveries_are_decided(fleet: WatchedDeployment, tmp_path: Path) -> None:
    quotes(fleet, "annotators", 0.0)
    fleet.send(bid("late", 90.0))
    fleet.until(of(fleet, JobReplanned, "late"), "the late job is planned again")
    assert {one.reason for one in of(fleet, JobReplanned, "late")()} == {"delivery_late"}
    first, second = (serving(fleet, "annotators", 0.0, tmp_path / f"{name}.log") for name in ("one", "two"))
    with first, second:
        fleet.until(lambda: fleet.completed("late"), "the late job is done", READY_S)
    (accepted,) = of(fleet, PreprocessingAccepted, "late")()
    assert accepted.reason == "late"
    delivered = [one.delivery for one in fleet.events(PreprocessingDelivered) if one.job_id == "late"]
    assert set(delivered) == {accepted.delivery}, "two services make the same of an order"

    # The service is gone, and its vendor quotes without delivering.
    quotes(fleet, "couriers", 0.0)
    fleet.send(bid("never", 24.0))
    fleet.until(of(fleet, JobRefunded, "never"), "the job without data is refunded")
    (admitted,), (refunded,) = of(fleet, JobAdmitted, "never")(), of(fleet, JobRefunded, "never")()
    assert refunded.refund_micros == admitted.payment_micros > 0
    (closed,) = of(fleet, PreprocessingClosed, "never")()
    assert (closed.reason, closed.returned_micros) == ("job_over", 0)
    fleet.assert_proven()


@pytest.mark.slow
def test_other_data_than_delivered_are_paid_back(fleet: WatchedDeployment) -> None:
    quotes(fleet, "cleaners", 0.0)
    fleet.send(bid("forged", 60.0))
    fleet.until(of(fleet, PreprocessingOrdered, "forged"), "the data are ordered")
    (order,) = of(fleet, PreprocessingOrdered, "forged")()
    size_bytes = (fleet.folders.datasets / "raw.jsonl").stat().st_size
    forged = PreprocessingDelivered(
        cell="demo",
        vendor=order.vendor,
        order_id=order.order_id,
        job_id="forged",
        delivery=Delivery(
            path=delivery_path("demo", order.vendor, order.order_id),
            digest="0" * 64,
            size_bytes=size_bytes,
            samples=83,
        ),
    )
    before = len(fleet.decided(EventIgnored))
    other = forged.model_copy(update={"vendor": "couriers"})
    fleet.send(other, forged, forged)
    fleet.until(of(fleet, JobRefunded, "forged"), "the job is refunded")
    ignored = [one.reason for one in fleet.decided(EventIgnored)[before:]]
    assert ignored == ["unknown_order", "order_is_over"]
    (accepted,) = of(fleet, PreprocessingAccepted, "forged")()
    (closed,) = of(fleet, PreprocessingClosed, "forged")()
    assert (closed.reason, closed.returned_micros) == ("data_differ", accepted.paid_micros)
    (admitted,), (refunded,) = of(fleet, JobAdmitted, "forged")(), of(fleet, JobRefunded, "forged")()
    assert refunded.refund_micros == admitted.payment_micros > 0
    fleet.assert_proven()
