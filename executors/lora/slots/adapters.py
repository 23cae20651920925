"""Finished adapters: their places, in PEFT's own format."""

import shutil
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from executors.lora.base_model import SharedBase
from executors.lora.checkpoint import ADAPTER_CONFIG, ADAPTER_TENSORS, encode_state
from executors.lora.task import TaskState
from executors.node.files import write_folder


@dataclass(frozen=True)
class PublishedAdapter:
    """An adapter below the output root."""

    path: str
    """Path relative to the output root."""
    digest: str
    """BLAKE2b-256 of its tensors' file, in hexadecimal."""


class AdapterOutput:
    """Writes a cell's adapters of one base model below one folder."""

    def __init__(self, root: Path, cell: str, base: SharedBase) -> None:
        """Write to `<root>/<cell>/<user>/<job_id>/`: cells may have jobs of the same id, and users may reuse
        ids over the years.
        """
        self._root = root
        self._cell = cell
        self._base = base

    def path_of(self, user: str, job_id: str) -> str:
        """Return the path of the adapter of a user's job, relative to the output root."""
        return f"{self._cell}/{user}/{job_id}"

    def publish(self, state: TaskState, user: str) -> PublishedAdapter:
        """Write the adapter of a user's finished task; a repeated call has no effect.

        Raises:
            OSError: the disk failed.
        """
        encoded = encode_state(state, self._base)
        files = {name: encoded[name] for name in (ADAPTER_CONFIG, ADAPTER_TENSORS)}
        path = self.path_of(user, state.task.job_id)
        folder = self._root / path
        if any(_content(folder / name) != content for name, content in files.items()):
            write_folder(folder, files)
        digest = blake2b(files[ADAPTER_TENSORS], digest_size=32).hexdigest()
        return PublishedAdapter(path, digest)

    def withdraw(self, adapter: PublishedAdapter) -> None:
        """Delete an adapter that was published after its job was over for its user."""
        shutil.rmtree(self._root / adapter.path, ignore_errors=True)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
