"""Data that a labour vendor has delivered: another file than the delivered one is not trained on."""

from executors.lora.dataset import DatasetError, DatasetRoot, FindIndex, JsonlDataset
from executors.lora.faults import is_permanent
from executors.lora.records import RecordForm
from schemas.lora import Delivery


class DataDifferError(DatasetError):
    """A file that is not the delivered one; the message names the file and what differs."""


def open_delivered(
    datasets: DatasetRoot, delivery: Delivery, find_index: FindIndex, form: RecordForm
) -> JsonlDataset:
    """Open a delivered file; see `DatasetRoot.open`.

    Raises:
        DataDifferError: it is missing, or its size, digest or number of records is not that of the delivery.
        DatasetError: the delivered file cannot be read, or its records are of another form.
    """
    try:
        dataset = datasets.open(delivery.path, find_index, form)
    except DatasetError as error:
        if not is_permanent(error):
            raise  # this node cannot read it, and others may
        _compare(delivery, *_tally(datasets, delivery))
        raise
    try:
        _compare(delivery, dataset.identity.size, dataset.digest, len(dataset))
    except DataDifferError:
        dataset.close()
        raise
    return dataset


def _tally(datasets: DatasetRoot, delivery: Delivery) -> tuple[int, str, int]:
    try:
        return datasets.tally(delivery.path)
    except DatasetError as error:
        raise DataDifferError(f"nothing was delivered: {error}") from error


def _compare(delivery: Delivery, size_bytes: int, digest: str, samples: int) -> None:
    for name, found, stated in (
        ("bytes", size_bytes, delivery.size_bytes),
        ("BLAKE2b", digest, delivery.digest),
        ("records", samples, delivery.samples),
    ):
        if found != stated:
            raise DataDifferError(f"{delivery.path!r}: has {name} {found}, the delivery states {stated}")
