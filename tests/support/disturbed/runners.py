"""The runners of the model, by the policies that command them."""

from typing import Any

import pytest

from executors.elastic.runner import ElasticRunner
from executors.elastic.settings import ElasticSettings
from executors.moe.runner import MoeRunner
from executors.moe.settings import MoeSettings
from executors.node.runner import RunnerContext
from executors.tuner.runner import TunerRunner
from executors.tuner.settings import TunerSettings
from schemas.elastic.commands import WorkersAssigned, WorkersReleased
from schemas.experts.commands import ExpertsPlaced, RanksAssigned, RanksReleased
from schemas.lora_commands import RunCancelled, SlotAssigned
from schemas.merging.commands import LoaderPrewarmed, ProfileOrdered, TaskAssigned, TaskReleased
from tests.support.disturbed.light_processes import Machine
from tests.support.disturbed.light_slots import LightSlots
from tests.support.disturbed.light_tuner import LightRanks, Meeting

_GRACE: dict[str, Any] = {"release_grace_s": 5.0, "stop_grace_s": 0.1}


class _OnMachine:
    """Runners whose processes are `LightProcess`es, or which have no processes."""

    def __init__(self) -> None:
        self.machine = Machine()

    def replace_processes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            "executors.gang.local_gang.ForkedProcess",
            lambda work, order, messages, name: self.machine.start(order),
        )

    def kill(self, node: str) -> None:
        self.machine.kill_node(node)

    def advance(self, time_s: float) -> None:
        self.machine.advance(time_s)

    def occupied(self, node: str) -> list[str]:
        return [f"process of {each.order.job_id}" for each in self.machine.on(node)]


class LoraRunners(_OnMachine):
    """For the auction."""

    name, base_model = "lora", "tiny"
    commands = (SlotAssigned, RunCancelled)

    def begin(self, context: RunnerContext) -> LightSlots:
        return LightSlots(self.machine, context.report)


class ElasticRunners(_OnMachine):
    """For elastic zones."""

    name, base_model = "elastic", "any"
    commands = (WorkersAssigned, WorkersReleased)

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
        super().__init__()
        self._gpus = gpus
        self.replace_processes(monkeypatch)

    def begin(self, context: RunnerContext) -> ElasticRunner:
        return ElasticRunner(context, ElasticSettings(**_GRACE, join_timeout_s=20.0), self._gpus)


class MoeRunners(_OnMachine):
    """For experts zones."""

    name, base_model = "moe", "any"
    commands = (RanksAssigned, ExpertsPlaced, RanksReleased)

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
        super().__init__()
        self._gpus = gpus
        self.replace_processes(monkeypatch)

    def begin(self, context: RunnerContext) -> MoeRunner:
        return MoeRunner(context, MoeSettings(**_GRACE), self._gpus)


class TunerRunners:
    """For merging zones."""

    name, base_model = "tuner", "tiny"
    commands = (ProfileOrdered, TaskAssigned, TaskReleased, LoaderPrewarmed)

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus
        self._meeting = Meeting()
        self._pools: dict[str, LightRanks] = {}

    def begin(self, context: RunnerContext) -> TunerRunner:
        node = context.settings.node
        self._pools[node] = LightRanks(node, self._gpus, self._meeting)
        pool: Any = self._pools[node]
        return TunerRunner(context, TunerSettings(stop_grace_s=0.1), pool)

    def kill(self, node: str) -> None:
        self._meeting.kill_node(node)
        self._pools.pop(node, None)

    def advance(self, time_s: float) -> None:
        self._meeting.time_s = time_s
        for pool in list(self._pools.values()):
            pool.advance()

    def occupied(self, node: str) -> list[str]:
        return [f"part of {part.part.meeting}" for part in self._meeting.on(node)]
