"""Which node each task of a slot goes to: vector packing into the nodes of a class."""

from collections.abc import Sequence

Size = tuple[int, int]
"""Samples and memory quanta."""

MOST_STEPS = 3_000
"""Of the search, for one slot and class: beyond it a packing counts as not found."""


def pack(items: Sequence[Size], nodes: Sequence[Size]) -> list[int] | None:
    """The node of each item such that every node holds what it gets; None where none was found.

    The largest item goes first, to the first node with room (first fit decreasing); where that fails, a depth
    first search goes on from there, for `MOST_STEPS`. Nodes that have the same left are tried once.
    """
    most = [max(node[part] for node in nodes) or 1 for part in (0, 1)] if nodes else [1, 1]
    order = sorted(
        range(len(items)), key=lambda item: (-max(items[item][0] / most[0], items[item][1] / most[1]), item)
    )
    left = [list(node) for node in nodes]
    where = [-1] * len(items)
    next_node = [0] * len(items)
    depth = steps = 0
    while depth < len(order):
        item = order[depth]
        samples, quanta = items[item]
        if where[item] >= 0:
            left[where[item]][0] += samples
            left[where[item]][1] += quanta
            where[item] = -1
        steps += 1
        found = -1
        for node in range(next_node[depth], len(left)):
            room = left[node]
            if room[0] >= samples and room[1] >= quanta and room not in left[:node]:
                found = node
                break
        if found < 0 or steps > MOST_STEPS:
            if depth == 0 or steps > MOST_STEPS:
                return None
            next_node[depth] = 0
            depth -= 1
            continue
        left[found][0] -= samples
        left[found][1] -= quanta
        where[item] = found
        next_node[depth] = found + 1
        depth += 1
        if depth < len(order):
            next_node[depth] = 0
    return where
