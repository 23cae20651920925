"""How the ranks of each job kind work.

A kind has a module with a function that is called in each rank process, with the order as JSON and the
process's end of the pipe; it hands both to `life.live`. It is named, not imported: the node's own process
imports no torch.
"""

from collections.abc import Mapping
from types import MappingProxyType

RANK_WORK: Mapping[str, str] = MappingProxyType({"moe-serve": "executors.moe.serving.serving:run_rank"})
"""`module:function` by the `kind` of a workload."""
