"""Check of data that a labour vendor has delivered: the file is the recorded one, and the job's data have all
of its lines."""

import os
from array import array
from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from executors.lora.dataset import DatasetError, DatasetRoot, FindIndex, JsonlDataset
from executors.lora.faults import is_permanent
from executors.lora.records import RecordForm
from schemas.lora import Delivery


class DataDifferError(DatasetError):
    """A file that is not the delivered one; the message names the file and what differs."""


def open_delivered(
    datasets: DatasetRoot, delivery: Delivery, find_index: FindIndex, form: RecordForm, source: str | None
) -> JsonlDataset:
    """Open a delivered file; see `DatasetRoot.open`.

    Args:
        source: file of which it was made; None if that was checked before.

    Raises:
        DataDifferError: it is missing, or its size, digest or number of records is not that of the delivery,
            or it has a line more often than the source.
        DatasetError: the delivered file or the source cannot be read, or its records are of another form.
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
        if source is not None:
            _check_source(delivery, dataset, source, datasets.lines(source))
    except BaseException:
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


def _check_source(
    delivery: Delivery, dataset: JsonlDataset, source: str, source_lines: Iterable[bytes]
) -> None:
    # A line with a given digest cannot be made without the key, so eight bytes are enough.
    key = os.urandom(16)
    made, made_counts = _digests(dataset.lines(), key)
    known, known_counts = _digests(source_lines, key)
    if len(known):
        places = np.minimum(np.searchsorted(known, made), len(known) - 1)
        made_counts = made_counts - np.where(known[places] == made, known_counts[places], 0)
    others = int(np.maximum(made_counts, 0).sum())
    if others:
        raise DataDifferError(
            f"{delivery.path!r}: {others} of {delivery.samples} records are not in {source!r}"
        )


def _digests(lines: Iterable[bytes], key: bytes) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the digests of lines, ascending, and how many lines have each."""
    digests = (blake2b(line, digest_size=8, key=key).digest() for line in lines)
    values = np.frombuffer(array("Q", (int.from_bytes(each) for each in digests)), np.uint64)
    found, counts = np.unique(values, return_counts=True)
    return found, counts
