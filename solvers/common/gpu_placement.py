"""Where the GPUs of a task or job are: on as few nodes as possible (Ymir, section 5.1, last paragraph)."""

from collections.abc import Mapping


def place(gpus: int, free: Mapping[str, int], preferred: Mapping[str, int]) -> dict[str, int] | None:
    """GPUs by node, the node with the most first; None where there are too few.

    One node that has room is taken before several, the fullest of these. Otherwise nodes with the most room
    are taken whole, and for what is left the fullest node that has room for it.

    Args:
        free: idle GPUs by node; ties go to the node that is named first.
        preferred: nodes that have had it before; among nodes that are as good, these come first.
    """
    order = {node: (node not in preferred, index) for index, node in enumerate(free)}
    left = {node: idle for node, idle in free.items() if idle}
    placed: dict[str, int] = {}
    while gpus:
        whole = [node for node, idle in left.items() if idle >= gpus]
        if whole:
            node = min(whole, key=lambda node: (left[node], order[node]))
        elif left:
            node = min(left, key=lambda node: (-left[node], order[node]))
        else:
            return None
        placed[node] = min(left.pop(node), gpus)
        gpus -= placed[node]
    return placed
