"""The executor service: carries out a node's commands with the LoRA engine and reports what comes of it."""

from executors.service.process import EXIT_FAILED, EXIT_UNFIT, main
from executors.service.settings import ExecutorSettings

__all__ = ["EXIT_FAILED", "EXIT_UNFIT", "ExecutorSettings", "main"]
