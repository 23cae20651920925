"""What a node has applied, on disk: replaced atomically, so that a restart finds a consistent state."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from executors.node.files import write_file
from schemas import codec

APPLIED_IDS_KEPT = 4_096
"""After a crash a worker publishes again what came after its last snapshot; this is far more than that."""

JOURNAL_FILE = "journal.json"


class JournalError(RuntimeError):
    """The journal is not this process's to use, or is no journal."""


class Journal(BaseModel):
    """The state of a node between two commands."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    boot: int = 0
    """Tells the starts of the node apart; grows."""
    cluster_id: str = ""
    """The Kafka cluster that the rest is about."""
    topic: str = ""
    partition: int = 0
    next_offset: Annotated[int, Field(ge=0)] = 0
    """Where to go on reading commands."""
    applied: tuple[str, ...] = ()
    """Keys of the last applied commands, oldest first."""
    runners: dict[str, JsonValue] = {}
    """What each runner goes on from, by its name."""

    def reading(self, cluster_id: str, topic: str, partition: int) -> "Journal":
        """The journal for commands from there: offsets, ids and runs of another cluster mean nothing."""
        if self.cluster_id != cluster_id:
            return Journal(boot=self.boot, cluster_id=cluster_id, topic=topic, partition=partition)
        if (self.topic, self.partition) != (topic, partition):
            return self.model_copy(update={"topic": topic, "partition": partition, "next_offset": 0})
        return self

    def with_applied(self, key: str) -> "Journal":
        """The journal with one more command applied."""
        return self.model_copy(update={"applied": (*self.applied, key)[-APPLIED_IDS_KEPT:]})


class JournalFile:
    """A node's journal below the state root."""

    def __init__(self, folder: Path) -> None:
        """Keep the journal in `folder`."""
        self._folder = folder
        self._path = folder / JOURNAL_FILE

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process that serves this node away.

        Raises:
            JournalError: there is one.
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
            JournalError: the file is no journal.
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
