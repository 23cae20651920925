"""Applied commands of a node, on disk: replaced atomically, so that a restart finds a consistent state."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from pydantic import Field, JsonValue, ValidationError

from executors.node.files import write_file
from schemas import codec
from schemas.base import Record

APPLIED_IDS_KEPT = 4_096
"""Most commands that a worker may publish again after a crash: all since its last snapshot, with a wide
margin."""

JOURNAL_FILE = "journal.json"


class JournalError(RuntimeError):
    """The journal is in use by another process, or is invalid."""


class Journal(Record):
    """State of a node between two commands."""

    boot: int = 0
    """Number of the node's start; grows."""
    cluster_id: str = ""
    """Kafka cluster of the other fields."""
    topic: str = ""
    partition: int = 0
    next_offset: Annotated[int, Field(ge=0)] = 0
    """Offset of the next command to read."""
    applied: tuple[str, ...] = ()
    """Keys of the last applied commands, oldest first."""
    runners: dict[str, JsonValue] = Field(default_factory=dict)
    """State of each runner, by its name."""

    def reading(self, cluster_id: str, topic: str, partition: int) -> "Journal":
        """Return the journal for commands of a partition: offsets, ids and runs of another cluster are
        dropped."""
        if self.cluster_id != cluster_id:
            return Journal(boot=self.boot, cluster_id=cluster_id, topic=topic, partition=partition)
        if (self.topic, self.partition) != (topic, partition):
            return self.model_copy(update={"topic": topic, "partition": partition, "next_offset": 0})
        return self

    def with_applied(self, key: str) -> "Journal":
        """Return the journal with one more applied command."""
        return self.model_copy(update={"applied": (*self.applied, key)[-APPLIED_IDS_KEPT:]})


class JournalFile:
    """A node's journal below the state root."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / JOURNAL_FILE

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the journal against other processes that serve this node.

        Raises:
            JournalError: another process holds the lock.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise JournalError(f"{self._folder}: another process serves this node") from None
            yield

    def load(self) -> Journal:
        """Read the journal; an empty one if the node has none yet.

        Raises:
            JournalError: the file is not a journal.
        """
        try:
            return Journal.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return Journal()
        except ValidationError as error:
            raise JournalError(f"{self._path}: {codec.describe(error)}") from None

    def save(self, journal: Journal) -> None:
        """Replace the journal.

        Raises:
            OSError: the disk failed.
        """
        write_file(self._path, journal.model_dump_json().encode())
