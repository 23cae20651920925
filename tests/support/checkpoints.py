"""The states of tasks in checkpoints: encoded and stored, found and decoded, as a node does both."""

from pathlib import Path

from executors.lora.lora_task import TaskState
from executors.lora.shared_base import SharedBase
from executors.lora.task_files import decode_state, encode_state
from executors.node.checkpoints import CheckpointStore


def save(root: Path, base: SharedBase, state: TaskState, token: int = 0) -> Path:
    """Write a checkpoint of one base model, and return its folder."""
    return CheckpointStore(root).save(state.task.job_id, token, state.samples_done, encode_state(state, base))


def load(root: Path, base: SharedBase, job_id: str) -> TaskState:
    """The state in the newest checkpoint."""
    newest = CheckpointStore(root).newest(job_id)
    assert newest is not None
    return decode_state(newest.files, base)
