"""Which of a zone's nodes are there, by what they say and what is said of them."""

from collections.abc import Collection
from typing import Any


class NodeWatch:
    """Nodes are taken to be up until they leave, announce an unfit base model, or fall silent once heard."""

    def __init__(self) -> None:
        self._heard: dict[str, None] = {}
        """Heard since they were last lost."""
        self._down: dict[str, None] = {}
        self._barred: dict[str, None] = {}

    @property
    def watched(self) -> Collection[str]:
        """Nodes that were heard and are up: their silence is news."""
        return self._heard.keys()

    def awaits(self, node: str) -> bool:
        """Whether a sign of life of the node is news."""
        return node not in self._heard and node not in self._barred

    def hear(self, node: str) -> bool:
        """Note a sign of life; True if it brings the node back."""
        if node in self._barred:
            return False
        self._heard[node] = None
        if node in self._down:
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
        self._heard.pop(node, None)
        if node in self._down:
            return False
        self._down[node] = None
        return True

    def state(self) -> dict[str, Any]:
        """Everything, of types that msgpack writes."""
        return {"heard": list(self._heard), "down": list(self._down), "barred": list(self._barred)}

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state of another watch."""
        self._heard = dict.fromkeys(state["heard"])
        self._down = dict.fromkeys(state["down"])
        self._barred = dict.fromkeys(state["barred"])
