"""Which of a zone's nodes are there, by what they say and when they last said anything."""

from typing import Any


class NodeWatch:
    """Nodes are taken to be up until they say otherwise, or fall silent after having been heard once."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._last_heard_s: dict[str, float] = {}
        self._down: dict[str, None] = {}
        self._barred: dict[str, None] = {}

    def hear(self, node: str, time_s: float) -> bool:
        """Note a sign of life; True if it brings the node back."""
        self._last_heard_s[node] = time_s
        if node in self._down and node not in self._barred:
            del self._down[node]
            return True
        return False

    def allow(self, node: str, fit: bool) -> None:
        """Note whether a node is fit for the zone; signs of life bring back no other."""
        if fit:
            self._barred.pop(node, None)
        else:
            self._barred[node] = None

    def lose(self, node: str) -> bool:
        """Note that a node is gone; True if it was up."""
        self._last_heard_s.pop(node, None)
        if node in self._down:
            return False
        self._down[node] = None
        return True

    def silent(self, time_s: float) -> list[str]:
        """Nodes last heard too long ago, by name."""
        return sorted(
            node
            for node, heard_s in self._last_heard_s.items()
            if time_s - heard_s > self._timeout_s and node not in self._down
        )

    def state(self) -> dict[str, Any]:
        """Everything, of types that msgpack writes."""
        return {
            "last_heard_s": list(self._last_heard_s.items()),
            "down": list(self._down),
            "barred": list(self._barred),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state of another watch."""
        self._last_heard_s = dict(state["last_heard_s"])
        self._down = dict.fromkeys(state["down"])
        self._barred = dict.fromkeys(state["barred"])
