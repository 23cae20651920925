"""How the C library treats memory that tensors free."""

import ctypes
import platform

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEEP_UP_TO_BYTES = 1 << 30


def keep_freed_memory() -> None:
    """Let this process keep freed memory for its next step, instead of handing it back to the system.

    By default glibc unmaps large blocks when they are freed, and each step pays for them again, page by page:
    tens of thousands of faults for a few thousand tokens. Costs nothing but that the process stays as large
    as its largest step. Does nothing under another C library.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, _KEEP_UP_TO_BYTES)
    libc.mallopt(_M_TRIM_THRESHOLD, _KEEP_UP_TO_BYTES)
