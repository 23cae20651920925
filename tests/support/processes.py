"""Watching real processes come and go."""

import time

import psutil


def is_gone_within(pid: int, timeout_s: float) -> bool:
    """Whether the process ends in time; one that only waits to be reaped counts as gone."""
    deadline_s = time.monotonic() + timeout_s
    while _runs(pid):
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(0.02)
    return True


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
