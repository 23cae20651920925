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


def with_delivery(delivery: Delivery, job_id: str = "j", source: str | None = None) -> RunOrder:
    return order(job_id, 8, dataset=PATH).model_copy(update={"delivery": delivery, "source": source})


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def reversed_part(bench) -> list[str]:
    """Lines of a source: twice as many as the delivered ones, in another order, and one that is no record."""
    made = lines_of(bench.datasets / PATH)
    others = [f'{{"text": "another sample {number}"}}' for number in range(30)]
    return ["no JSON", *others, *(f" {line}\r" for line in reversed(made))]


def test_delivery_of_source_lines_is_trained(bench, delivered: Path) -> None:
    (bench.datasets / "raw.jsonl").write_text("\n".join(reversed_part(bench)))
    bench.carry_out(assignment(with_delivery(delivery_of(delivered), source="raw.jsonl")))
    assert bench.reports_on("j")[-1].samples_done == 8


@pytest.mark.parametrize(
    ("change", "others"),
    [
        (lambda lines: lines[1:], 1),
        (lambda lines: ["no JSON"], 30),
        (lambda lines: [f"{line}." for line in lines], 30),
    ],
    ids=["one line", "all lines", "changed lines"],
)
def test_records_that_the_source_lacks_are_refused(bench, delivered: Path, change, others: int) -> None:
    (bench.datasets / "raw.jsonl").write_text("\n".join(change(lines_of(delivered))))
    bench.carry_out(assignment(with_delivery(delivery_of(delivered), source="raw.jsonl")))
    (failed,) = bench.reports_on("j")
    assert failed.cause == "data_differ"
    assert f"{others} of 30 records are not in 'raw.jsonl'" in failed.error


def test_lines_repeated_by_the_vendor_are_refused(bench, delivered: Path) -> None:
    first = lines_of(delivered)[0]
    (bench.datasets / "raw.jsonl").write_text(f"{first}\n{first}\n")
    delivered.write_text(f"{first}\n" * 30)
    bench.carry_out(assignment(with_delivery(delivery_of(delivered), source="raw.jsonl")))
    (failed,) = bench.reports_on("j")
    assert failed.cause == "data_differ"
    assert "28 of 30 records" in failed.error


def test_missing_source_is_the_fault_of_the_user(bench, delivered: Path) -> None:
    bench.carry_out(assignment(with_delivery(delivery_of(delivered), source="raw.jsonl")))
    (failed,) = bench.reports_on("j")
    assert (failed.cause, failed.permanent) == (None, True)


def test_delivered_data_are_trained(bench, delivered: Path) -> None:
    bench.carry_out(assignment(with_delivery(delivery_of(delivered)), order("plain", 8)))
    begun, *_, ended = bench.reports_on("j")
    assert isinstance(begun, RunStarted)
    assert (begun.dataset_samples, ended.samples_done) == (30, 8)
    assert bench.reports_on("plain")[-1].samples_done == 8


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
    (failed,) = bench.reports_on("j")
    assert isinstance(failed, RunFailed)
    assert (failed.cause, failed.samples_done) == ("data_differ", 0)
    assert PATH in failed.error
    assert bench.reports_on("plain")[-1].samples_done == 8


def test_fewer_records_than_stated_are_refused(bench, delivered: Path) -> None:
    bench.carry_out(assignment(with_delivery(delivery_of(delivered, samples=31))))
    (failed,) = bench.reports_on("j")
    assert failed.cause == "data_differ"
    assert failed.error.endswith("has records 30, the delivery states 31")


def test_broken_records_behind_a_true_digest_are_refused(bench, delivered: Path) -> None:
    broken(delivered)
    bench.carry_out(assignment(with_delivery(delivery_of(delivered))))
    (failed,) = bench.reports_on("j")
    assert failed.cause == "data_differ"


def test_records_of_another_form_are_the_users(bench, delivered: Path) -> None:
    delivered.write_text('{"text": "fine", "label": 1}\n')
    bench.carry_out(assignment(with_delivery(delivery_of(delivered, samples=1))))
    (failed,) = bench.reports_on("j")
    assert (failed.cause, failed.permanent) == (None, True)
