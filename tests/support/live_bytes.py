"""Bytes of tensors that a computation holds at a time, on a CPU, whose allocator reports none."""

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts what is allocated in its block, forward and backward.

    Attributes:
        peak_bytes: the most that was there at a time.
    """

    def __init__(self, present: Iterable[Tensor]) -> None:
        """
        Args:
            present: tensors that exist before, which are not counted.
        """
        super().__init__()
        self._known = weakref.WeakSet(each.untyped_storage() for each in present)
        self._live_bytes = self.peak_bytes = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            if isinstance(result, Tensor):
                self._note(result)
        return results

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage in self._known:
            return
        self._known.add(storage)
        self._live_bytes += storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, self._live_bytes)
        weakref.finalize(storage, self._note_freed, storage.nbytes())

    def _note_freed(self, size_bytes: int) -> None:
        self._live_bytes -= size_bytes
