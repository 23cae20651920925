"""The node service: gives a node's commands to its runners, and reports the results."""

from executors.node.process import EXIT_FAILED, EXIT_UNFIT, main
from executors.node.settings import ExecutorSettings

__all__ = ["EXIT_FAILED", "EXIT_UNFIT", "ExecutorSettings", "main"]
