"""The node service: sends a node's commands to its runners, and reports the results."""

from executors.node.process import main
from executors.node.settings import ExecutorSettings

__all__ = ["ExecutorSettings", "main"]
