"""Check and count the data of jobs ahead of their tasks, in a process of its own.

A thread of a rank would hold Python's global lock, which each operation of the training needs: a step would
take several times as long. Results are kept in files that all ranks of the node read.
"""

import logging
import os
import time
from array import array
from contextlib import suppress
from hashlib import blake2b
from multiprocessing.connection import Connection
from pathlib import Path

from executors.lora.dataset import DatasetIndex, DatasetRoot, FileIdentity
from executors.lora.faults import described
from executors.lora.model_kind import BaseModelError, records_in
from executors.lora.records import TEXT_RECORDS, RecordForm, with_columns
from executors.node.files import write_file
from executors.tuner.messages import Prewarm, RankEnvironment
from schemas.lora import Columns

_DIGEST_BYTES = 32
_POLL_S = 1.0

_log = logging.getLogger(__name__)


class IndexFiles:
    """Indices of a node, by identity of the file and form of its records."""

    def __init__(self, folder: Path) -> None:
        """Use `folder`, which must be local: identities are valid on one machine only."""
        self._folder = folder

    def find(self, identity: FileIdentity, form: RecordForm) -> DatasetIndex | None:
        """Return the index of a file that was checked against a form of records; None if it has none."""
        try:
            content = self._path(identity, form).read_bytes()
        except OSError:
            return None
        check, body = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if blake2b(body, digest_size=_DIGEST_BYTES).digest() != check:
            return None
        offsets = array("Q")
        offsets.frombytes(body[_DIGEST_BYTES:])
        return DatasetIndex(offsets, body[:_DIGEST_BYTES].hex())

    def write(self, identity: FileIdentity, form: RecordForm, index: DatasetIndex) -> None:
        """Write an index.

        Raises:
            OSError: the disk failed.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        body = bytes.fromhex(index.digest) + index.offsets.tobytes()
        check = blake2b(body, digest_size=_DIGEST_BYTES).digest()
        write_file(self._path(identity, form), check + body)

    def remove(self, identity: FileIdentity, form: RecordForm) -> None:
        self._path(identity, form).unlink(missing_ok=True)

    def _path(self, identity: FileIdentity, form: RecordForm) -> Path:
        # A record that is valid for one base model, or one choice of columns, may be invalid for another.
        fields = identity.device, identity.inode, identity.size, identity.modified_ns, form.key
        return self._folder / ("-".join(map(str, fields)) + ".index")


class Indexer:
    """Makes indices, and removes them when their time is over."""

    def __init__(self, root: DatasetRoot, files: IndexFiles, form: RecordForm = TEXT_RECORDS) -> None:
        """`form`: form of records that the base model can be trained on."""
        self._root = root
        self._files = files
        self._form = form
        self._kept: dict[tuple[FileIdentity, RecordForm], float] = {}

    def prepare(self, name: str, drop_s: float, columns: Columns | None = None) -> None:
        """Check a file, unless it has an index. Its faults are reported when its task opens it.

        Args:
            drop_s: Unix time at which the index is removed (s).
            columns: names of the fields of the job's records.
        """
        form = with_columns(self._form, columns)
        try:
            with self._root.open(name, self._files.find, form) as dataset:
                self._files.write(dataset.identity, form, dataset.index)
        except Exception as error:
            _log.info("data not prepared name=%s: %s", name, described(error))
            return
        key = dataset.identity, form
        self._kept[key] = max(drop_s, self._kept.get(key, 0.0))

    def drop_expired(self, now_s: float) -> None:
        """Remove the indices whose time is over."""
        for key, drop_s in list(self._kept.items()):
            if drop_s <= now_s:
                del self._kept[key]
                self._files.remove(*key)


def index_folder(environment: RankEnvironment) -> Path:
    return environment.state_root / environment.cell / "tuner-indices" / environment.node


def run_indexer(environment_json: str, connection: "Connection[bytes, bytes]") -> None:
    """Run the indexer until the node's process is gone."""
    with suppress(OSError):
        os.nice(1)
    environment = RankEnvironment.model_validate_json(environment_json)
    settings = environment.tuner_settings()
    try:
        form = records_in(settings.base_model_dir)
    except (BaseModelError, OSError):
        return  # the ranks report it, and the node does not start
    indexer = Indexer(DatasetRoot(settings.dataset_root), IndexFiles(index_folder(environment)), form)
    while True:
        try:
            if connection.poll(_POLL_S):
                prewarm = Prewarm.model_validate_json(connection.recv_bytes())
                workload = prewarm.order.workload
                for name in (workload.dataset.path, workload.validation_path):
                    if name is not None:
                        indexer.prepare(name, prewarm.drop_s, workload.dataset.columns)
        except (EOFError, OSError):
            return
        indexer.drop_expired(time.time())
