"""A node trains on what a vendor has delivered, and refuses another file."""

from hashlib import blake2b
from pathlib import Path

import pytest

from schemas.fleet import RunFailed, RunStarted
from schemas.lora import Delivery
from schemas.lora_commands import RunOrder
from tests.support.executors import assignment, order, write_dataset

PATH = "prepared/pairs.jsonl"


@pytest.fixture
def delivered(bench) -> Path:
    path = bench.datasets / PATH
    path.parent.mkdir()
    write_dataset(path, records=30)
    return path


def delivery_of(path: Path, samples: int = 30) -> Delivery:
    content = path.read_bytes()
    return Delivery(
        path=PATH,
        digest=blake2b(content, digest_size=32).hexdigest(),
        size_bytes=len(content),
        samples=samples,
    )


def with_delivery(delivery: Delivery, job_id: str = "j") -> RunOrder:
    return order(job_id, 8, dataset=PATH).model_copy(update={"delivery": delivery})


def test_delivered_data_are_trained(bench, delivered: Path) -> None:
    bench.carry_out(assignment(with_delivery(delivery_of(delivered)), order("plain", 8)))
    begun, *_, ended = bench.told("j")
    assert isinstance(begun, RunStarted)
    assert (begun.dataset_samples, ended.samples_done) == (30, 8)
    assert bench.told("plain")[-1].samples_done == 8


def shorter(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def broken(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"{", b"[", 1))


def exchanged(path: Path) -> None:
    write_dataset(path, records=30, seed=6)


def missing(path: Path) -> None:
    path.unlink()


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def link_out_of_the_root(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/hostname")


@pytest.mark.parametrize("change", [shorter, broken, exchanged, missing, folder, link_out_of_the_root])
def test_other_data_than_delivered_are_refused(bench, delivered: Path, change) -> None:
    delivery = delivery_of(delivered)
    change(delivered)
    bench.carry_out(assignment(with_delivery(delivery), order("plain", 8)))
    (failed,) = bench.told("j")
    assert isinstance(failed, RunFailed)
    assert (failed.cause, failed.samples_done) == ("data_differ", 0)
    assert PATH in failed.error
    assert bench.told("plain")[-1].samples_done == 8


def test_fewer_records_than_stated_are_refused(bench, delivered: Path) -> None:
    bench.carry_out(assignment(with_delivery(delivery_of(delivered, samples=31))))
    (failed,) = bench.told("j")
    assert failed.cause == "data_differ"
    assert failed.error.endswith("has records 30, the delivery states 31")


def test_broken_records_behind_a_true_digest_are_refused(bench, delivered: Path) -> None:
    broken(delivered)
    bench.carry_out(assignment(with_delivery(delivery_of(delivered))))
    (failed,) = bench.told("j")
    assert failed.cause == "data_differ"


def test_records_of_another_form_are_the_users(bench, delivered: Path) -> None:
    delivered.write_text('{"text": "fine", "label": 1}\n')
    bench.carry_out(assignment(with_delivery(delivery_of(delivered, samples=1))))
    (failed,) = bench.told("j")
    assert (failed.cause, failed.permanent) == (None, True)
