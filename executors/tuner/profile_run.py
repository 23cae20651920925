"""A profile run on one of its ranks: one, or as many as a pipeline has stages."""

import logging
import time
from collections.abc import Callable
from typing import Any

from executors.gang.faults import write_note
from executors.gang.folder import JobFolder
from executors.gang.meeting import PeerFailedError, PeerLostError
from executors.lora.base_model import SharedBase
from executors.lora.faults import described
from executors.tuner.faults import cannot_succeed_elsewhere
from executors.tuner.gathering import HaltedError, come_together, why_peer_was_lost
from executors.tuner.messages import Outcome, Over, ProfilePart, TaskReport
from executors.tuner.profiling import profile
from executors.tuner.rank_resources import RankResources
from executors.tuner.team import Team
from schemas.fleet import RunFailed, RunReport, RunStarted
from schemas.merging.reports import ProfileReported

_log = logging.getLogger(__name__)


class ProfileRun:
    """One rank's part of a profile run. Its leader reports for all."""

    def __init__(
        self,
        part: ProfilePart,
        surroundings: RankResources,
        base: SharedBase,
        open_team: Callable[[], Team],
        folder: JobFolder,
    ) -> None:
        """Start nothing before `run`.

        Args:
            open_team: opens the job.
            folder: folder of the ranks' meeting.
        """
        self._part = part
        self._around = surroundings
        self._base = base
        self._open_team = open_team
        self._folder = folder

    def run(self) -> None:
        """Do the run, and end it with the message `Over`."""
        outcome: Outcome = "stopped"
        if not self._is_halted():
            self._report(RunStarted, {})
            try:
                if self._run():
                    outcome = "finished"
            except HaltedError:
                pass
            except Exception as error:
                outcome = "failed"
                self._fail(error)
        self._around.inbox.send(Over(part=self._part.part, outcome=outcome))
        self._around.inbox.forget(self._part.part)

    def _run(self) -> bool:
        """Do the run, and return whether it was completed."""
        command, settings, membership = self._part.command, self._around.settings, self._part.membership
        deadline_s = time.monotonic() + command.limit_s
        team = self._open_team()
        try:
            meeting = come_together(
                self._folder, membership, settings.worker_host, settings.join_timeout_s, self._is_halted
            )
            team.join(meeting)
            team.agree()
            device, leads = self._around.device, membership.rank == 0
            found = profile(command, team, self._base, settings, device, deadline_s, leads, self._is_halted)
            if found is not None:
                self._report(ProfileReported, vars(found))
            return found is not None
        finally:
            team.leave()
            for job in team.jobs:
                job.loader.close()

    def _fail(self, error: Exception) -> None:
        generation = self._part.membership.generation
        if isinstance(error, PeerLostError):
            error = why_peer_was_lost(self._folder, generation, error)
        permanent = cannot_succeed_elsewhere(error)
        if isinstance(error, PeerFailedError):
            permanent = error.is_permanent
        elif self._part.membership.world > 1 and not isinstance(error, PeerLostError):
            write_note(self._folder, generation, error, permanent=permanent)
        _log.warning("profile run failed job=%s error=%r", self._part.command.order.job_id, error)
        self._report(RunFailed, {"error": described(error), "permanent": permanent})

    def _is_halted(self) -> bool:
        return self._around.inbox.is_halted(self._part.part)

    def _report(self, kind: type[RunReport], fields: dict[str, Any]) -> None:
        """Report, if this rank leads."""
        if self._part.membership.rank != 0:
            return
        order = self._part.command.order
        report = kind(
            cell=self._around.cell,
            node=self._around.node,
            run_id=order.run_id,
            job_id=order.job_id,
            samples_done=0,
            **fields,
        )
        data = report.model_dump(mode="json")
        self._around.inbox.send(TaskReport(part=self._part.part, type=report.TYPE, data=data))
