"""A share of the machine's processor, and no more, for a process and all that it starts."""

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_PERIOD_US = 100_000
_GROUPS = Path("/sys/fs/cgroup")


@contextmanager
def share_of_the_processor(share: float) -> Iterator[list[str]]:
    """Yield what to put before a command for it to get a share of all cores, by a control group of Linux.

    Skips the test where none can be made.
    """
    quota_us = int(share * (os.cpu_count() or 1) * _PERIOD_US)
    is_first_version = (_GROUPS / "cpu").is_dir()
    group = (_GROUPS / "cpu" if is_first_version else _GROUPS) / f"millrace-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        if is_first_version:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (group / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    except OSError as error:
        pytest.skip(f"a control group takes no quota: {error}")
    finally:
        while (group / "cgroup.procs").read_text():
            time.sleep(0.1)
        group.rmdir()
