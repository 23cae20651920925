"""Devices that are slower than those at hand."""

import time


def throttle(began_s: float, sequences: int, least_sequence_s: float) -> None:
    """Sleep until sequences have taken at least a time each.

    Args:
        began_s: start of their computation, on the monotonic clock.
        sequences: number of the sequences.
        least_sequence_s: shortest time of a sequence (s); 0 for no sleep.
    """
    left_s = began_s + sequences * least_sequence_s - time.monotonic()
    if left_s > 0:
        time.sleep(left_s)
