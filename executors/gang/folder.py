"""Messages of a job's ranks through the shared disk; also for processes without torch."""

import shutil
import time
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from executors.node.files import PRIVATE, write_file
from schemas.base import Record

_POLL_S = 0.005
_FAILURE_WAIT_S = 1.0
"""Time to wait for the failure of a lost rank, which writes it before it ends (s)."""


class MeetingAddress(BaseModel):
    """Address of a generation's store."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    host: str
    port: int
    secret: str


class _Failure(Record):
    error: str
    permanent: bool


class JobFolder:
    """Messages of a job's ranks through the shared disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write_address(self, generation: int, address: MeetingAddress) -> None:
        """Write the address of a generation's store, readable by the owner only.

        Raises:
            OSError: the disk failed.
        """
        self._write(self._address(generation), address, PRIVATE)

    def read_address(self, generation: int) -> MeetingAddress | None:
        """Return the address of a generation's store; None before it is written."""
        try:
            return MeetingAddress.model_validate_json(self._address(generation).read_bytes())
        except FileNotFoundError:
            return None

    def write_failure(self, generation: int, error: str, permanent: bool) -> None:
        """Write the error of a rank of a generation, for the others, which otherwise detect only its loss.

        Raises:
            OSError: the disk failed.
        """
        self._write(self._failure(generation), _Failure(error=error, permanent=permanent))

    def read_failure(self, generation: int) -> tuple[str, bool] | None:
        """Return the error of a rank of a generation, and whether it is permanent; None if none has
        failed."""
        try:
            failure = _Failure.model_validate_json(self._failure(generation).read_bytes())
        except FileNotFoundError:
            return None
        return failure.error, failure.permanent

    def await_failure(self, generation: int) -> tuple[str, bool] | None:
        """Wait for a failure, and return it; None after `_FAILURE_WAIT_S`."""
        deadline_s = time.monotonic() + _FAILURE_WAIT_S
        while time.monotonic() < deadline_s:
            if (failure := self.read_failure(generation)) is not None:
                return failure
            time.sleep(_POLL_S)
        return None

    def remove_before(self, generation: int) -> None:
        """Remove the messages of older generations."""
        try:
            found = list(self.path.iterdir())
        except FileNotFoundError:
            return  # the generation before was over, and removed it
        for path in found:
            number = path.name.partition(".")[0]
            if number.isdecimal() and int(number) < generation:
                path.unlink(missing_ok=True)

    def remove_generation(self, generation: int) -> None:
        """Remove the messages of a generation that is over and of older ones. A newer one may be meeting."""
        self.remove_before(generation + 1)
        with suppress(OSError):
            self.path.rmdir()  # unless another generation has written since

    def remove(self) -> None:
        """Remove the folder: the job is over."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _write(self, path: Path, fields: BaseModel, mode: int = 0o666) -> None:
        content = fields.model_dump_json().encode()
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            write_file(path, content, mode)
        except FileNotFoundError:
            # An older generation may have removed the folder at its end.
            self.path.mkdir(parents=True, exist_ok=True)
            write_file(path, content, mode)

    def _address(self, generation: int) -> Path:
        return self.path / f"{generation}.address.json"

    def _failure(self, generation: int) -> Path:
        return self.path / f"{generation}.failure.json"
