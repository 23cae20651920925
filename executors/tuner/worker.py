"""A worker process: one GPU, the base model, and one task after another on it.

Between two tasks only adapter, optimizer and data change (runtime reuse, Ymir, section 6): the next one is
opened while the present one trains, and the present one is written while the next one trains.
"""

import logging
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from executors.lora.base_model import SharedBase, load_base
from executors.lora.dataset import DatasetRoot
from executors.lora.engine import keep_freed_memory
from executors.tuner.checkpoints import JobCheckpoints
from executors.tuner.data import PreparedLoaders, SharedTokenizer
from executors.tuner.faults import cannot_succeed_elsewhere, described
from executors.tuner.files import JobFiles
from executors.tuner.inbox import Inbox
from executors.tuner.indexing import IndexFiles, index_folder
from executors.tuner.keeper import Keeper
from executors.tuner.messages import Outcome, Over, Place, ProfilePart, Ready, TaskPart, Told, Unfit
from executors.tuner.opening import OpenTask, open_task
from executors.tuner.profiling import profile
from executors.tuner.surroundings import Surroundings
from executors.tuner.task import TaskRun
from executors.workers.folder import JobFolder
from executors.workers.network import use_interface
from executors.workers.processes import take_device
from schemas.fleet import RunFailed, RunReport, RunStarted
from schemas.merging.reports import ProfileReported

_log = logging.getLogger(__name__)


def run_worker(place_json: str, connection: "Connection[bytes, bytes]") -> None:
    """The whole life of a worker process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # The node decides when its workers stop, even if a supervisor signals all processes.
        signal.signal(number, signal.SIG_IGN)
    place = Place.model_validate_json(place_json)
    try:
        base = _load(place)
    except Exception as error:
        connection.send_bytes(Unfit(error=described(error)).model_dump_json().encode())
        return
    Worker(place, base, connection).serve()


def _load(place: Place) -> SharedBase:
    settings = place.tuner_settings()
    if settings.device == "cuda":
        take_device(place.gpu)
    disable_progress_bar()
    keep_freed_memory()
    torch.set_num_threads(settings.threads)
    use_interface(settings.worker_host)
    return load_base(settings.base_model_dir, settings.device)


class Worker:
    """Serves one part after another."""

    def __init__(self, place: Place, base: SharedBase, connection: "Connection[bytes, bytes]") -> None:
        self._place = place
        self._base = base
        self._settings = place.tuner_settings()
        self._device = torch.device(self._settings.device)
        self._files = JobFiles(place.state_root, place.cell)
        self._checkpoints = JobCheckpoints(self._files, base, place.cell, place.output_root)
        self._loaders = PreparedLoaders(
            DatasetRoot(self._settings.dataset_root),
            SharedTokenizer(base.tokenizer),
            self._settings,
            find_index=IndexFiles(index_folder(place)).find,
        )
        self._opening: dict[int, _Opening] = {}
        self._inbox = Inbox(connection, self._open)
        self._surroundings = Surroundings(
            cell=place.cell,
            node=place.node,
            device=self._device,
            settings=self._settings,
            checkpoints=self._checkpoints,
            keeper=Keeper(),
            inbox=self._inbox,
        )

    def serve(self) -> None:
        """Serve until the node is gone."""
        self._inbox.tell(Ready())
        self._inbox.listen()
        while True:
            part = self._inbox.next_part()
            if isinstance(part, TaskPart):
                self._run_task(part)
            else:
                self._run_profile(part)

    def _open(self, part: TaskPart) -> None:
        leads = part.membership.rank == 0

        def load() -> OpenTask:
            return open_task(
                part.command, leads, self._checkpoints, self._loaders, self._settings, self._device
            )

        self._opening[part.part] = _Opening(load)

    def _run_task(self, part: TaskPart) -> None:
        folder = JobFolder(self._files.meeting_place(part.command.task_id))
        opening = self._opening.pop(part.part)
        TaskRun(part, self._surroundings, opening.result, folder).run()

    def _run_profile(self, part: ProfilePart) -> None:
        command, order = part.command, part.command.order
        about: dict[str, Any] = {
            "cell": self._place.cell,
            "node": self._place.node,
            "run_id": order.run_id,
            "job_id": order.job_id,
            "samples_done": 0,
        }

        def is_halted() -> bool:
            return self._inbox.verdict(part.part) is not None

        outcome: Outcome = "stopped"
        if not is_halted():
            self._tell(part, RunStarted(**about))
            try:
                found = profile(command, self._base, self._loaders, self._settings, self._device, is_halted)
                if found is not None:
                    outcome = "finished"
                    self._tell(part, ProfileReported(**about, **vars(found)))
            except Exception as error:
                outcome = "failed"
                _log.warning("profile run failed job=%s error=%r", order.job_id, error)
                permanent = cannot_succeed_elsewhere(error)
                self._tell(part, RunFailed(**about, error=described(error), permanent=permanent))
        self._inbox.tell(Over(part=part.part, outcome=outcome))
        self._inbox.forget(part.part)

    def _tell(self, part: ProfilePart, report: RunReport) -> None:
        data = report.model_dump(mode="json")
        self._inbox.tell(Told(part=part.part, type=report.TYPE, data=data))


class _Opening:
    """A task that is being opened, by a thread of its own."""

    def __init__(self, load: Callable[[], OpenTask]) -> None:
        self._load = load
        self._opened: OpenTask | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="opening", daemon=True)
        self._thread.start()

    def result(self) -> OpenTask:
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._opened is not None, "it was opened or has failed"
        return self._opened

    def _run(self) -> None:
        try:
            # The thread has torch's default otherwise, and takes cores from the training.
            torch.set_num_threads(1)
            self._opened = self._load()
        except Exception as error:
            self._error = error
