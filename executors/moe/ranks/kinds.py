"""How the ranks of each job kind work.

A kind has a module with a function that is called in each rank process, with the order as JSON and the
process's end of the pipe; it hands both to `life.live`. It is named, not imported: the node's own process
imports no torch.
"""

from collections.abc import Mapping
from types import MappingProxyType

from executors.processes import forked_process

RANK_WORK: Mapping[str, str] = MappingProxyType(
    {
        "moe-serve": "executors.moe.serving.serving:run_rank",
        "moe-train": "executors.moe.training.training:run_rank",
    }
)
"""`module:function` by the `kind` of a workload."""


def warm_up() -> int:
    """Start the fork server and wait until it has imported; return how many CUDA devices there are."""
    return forked_process.warm_up(*(work.partition(":")[0] for work in RANK_WORK.values()))
