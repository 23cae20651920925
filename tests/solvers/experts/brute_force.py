"""Oracles for placements of few experts on few devices, which share no code with what they check."""

import itertools


def least_largest_load(devices, tokens):
    """The fewest tokens on the busiest device, over all ways to split: by Hall's condition, those of the
    set of experts with the most tokens per device that has one of them.

    Args:
        devices: the experts on each.
    """
    most = 0
    for size in range(1, len(tokens) + 1):
        for some in itertools.combinations(range(len(tokens)), size):
            having = sum(1 for experts in devices if set(some) & set(experts))
            needed = sum(tokens[expert] for expert in some)
            most = max(most, -(-needed // having) if having else 10**18)
    return most


def best_largest_load(tokens, devices, most_per_device):
    """Return the least largest load over all placements."""
    rows = [
        row for size in range(most_per_device + 1) for row in itertools.combinations(range(len(tokens)), size)
    ]
    return min(
        least_largest_load(placed, tokens)
        for placed in itertools.combinations_with_replacement(rows, devices)
    )
