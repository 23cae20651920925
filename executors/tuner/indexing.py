"""Checks and counts the data of jobs ahead of their tasks, in a process of its own.

In a thread of a worker it would hold Python's global lock, for which each operation of the training waits: a
step takes several times as long meanwhile. What is found is kept in files that all workers of the node read.
"""

import logging
import os
import signal
import time
from array import array
from contextlib import suppress
from hashlib import blake2b
from multiprocessing.connection import Connection
from pathlib import Path

from pydantic import TypeAdapter

from executors.lora.dataset import DatasetError, DatasetIndex, DatasetRoot, FileIdentity
from executors.lora.model_kind import BaseModelError, records_in
from executors.lora.records import TEXT_RECORDS, RecordForm
from executors.node.files import write_file
from executors.tuner.messages import Place, Prewarm

_DIGEST_BYTES = 32
_POLL_S = 1.0

_log = logging.getLogger(__name__)
_PREWARM: TypeAdapter[Prewarm] = TypeAdapter(Prewarm)


class IndexFiles:
    """The indices of a node, by the identity of the file that each is of.

    Attributes:
        form: of the records that the files have.
    """

    def __init__(self, folder: Path, form: RecordForm = TEXT_RECORDS) -> None:
        """Keep them in `folder`, which is this machine's: identities mean nothing on another."""
        self.form = form
        self._folder = folder

    def find(self, identity: FileIdentity) -> DatasetIndex | None:
        """The index of a file; None if there is none that is whole."""
        try:
            content = self._path(identity).read_bytes()
        except OSError:
            return None
        check, body = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if blake2b(body, digest_size=_DIGEST_BYTES).digest() != check:
            return None
        offsets = array("Q")
        offsets.frombytes(body[_DIGEST_BYTES:])
        return DatasetIndex(offsets, body[:_DIGEST_BYTES].hex())

    def write(self, identity: FileIdentity, index: DatasetIndex) -> None:
        """Keep an index.

        Raises:
            OSError: the disk failed.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        body = bytes.fromhex(index.digest) + index.offsets.tobytes()
        check = blake2b(body, digest_size=_DIGEST_BYTES).digest()
        write_file(self._path(identity), check + body)

    def remove(self, identity: FileIdentity) -> None:
        """Give an index up."""
        self._path(identity).unlink(missing_ok=True)

    def _path(self, identity: FileIdentity) -> Path:
        # What is sound for one base model may not be for the next.
        fields = identity.device, identity.inode, identity.size, identity.modified_ns, self.form.key
        return self._folder / ("-".join(map(str, fields)) + ".index")


class Indexer:
    """Makes indices, and gives them up when their time is over."""

    def __init__(self, root: DatasetRoot, files: IndexFiles) -> None:
        self._root = root
        self._files = files
        self._kept: dict[FileIdentity, float] = {}

    def prepare(self, name: str, drop_s: float) -> None:
        """Check a file, unless it is known. What is wrong with it shows when its task opens it.

        Args:
            drop_s: when the index is given up, in Unix seconds.
        """
        try:
            with self._root.open(name, self._files.find, self._files.form) as dataset:
                self._files.write(dataset.identity, dataset.index)
        except (DatasetError, OSError) as error:
            _log.info("data not prepared name=%s: %s", name, error)
            return
        self._kept[dataset.identity] = max(drop_s, self._kept.get(dataset.identity, 0.0))

    def give_up(self, now_s: float) -> None:
        """Give up what is over at a time, in Unix seconds."""
        for identity, drop_s in list(self._kept.items()):
            if drop_s <= now_s:
                del self._kept[identity]
                self._files.remove(identity)


def index_folder(place: Place) -> Path:
    """Where the indices of a node lie."""
    return place.state_root / place.cell / "tuner-indices" / place.node


def run_indexer(place_json: str, connection: "Connection[bytes, bytes]") -> None:
    """The whole life of the process: until the node is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(1)
    place = Place.model_validate_json(place_json)
    settings = place.tuner_settings()
    try:
        form = records_in(settings.base_model_dir)
    except (BaseModelError, OSError):
        return  # the workers say so, and the node does not start
    indexer = Indexer(DatasetRoot(settings.dataset_root), IndexFiles(index_folder(place), form))
    while True:
        try:
            if connection.poll(_POLL_S):
                prewarm = _PREWARM.validate_json(connection.recv_bytes())
                workload = prewarm.order.workload
                for name in (workload.dataset.path, workload.validation_path):
                    if name is not None:
                        indexer.prepare(name, prewarm.drop_s)
        except (EOFError, OSError):
            return
        indexer.give_up(time.time())
