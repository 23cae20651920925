"""Random worlds of users whose services never end and users whose jobs do: each of the jobs begins in time,
and none gives way too early."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.streams.experts.test_giving_way import PATIENCE_S, SLACK_S, STEP_S, World, endless
from tests.support.examples import examples
from tests.support.moe import GPUS, training


class Users:
    """Users of a random world: some have services that never end, the others one job after the other."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        nodes = rng.randint(1, 3)
        self.devices = nodes * GPUS
        self.world = World(nodes)
        self.users = [f"u{number}" for number in range(rng.randint(2, 5))]
        self.with_services = self.users[: rng.randint(1, len(self.users) - 1)]
        self.services = [
            (rng.choice([0.0, rng.uniform(0.0, 5 * PATIENCE_S)]), user, f"{user}-{number}")
            for user in self.with_services
            for number in range(rng.randint(1, 4))
        ]
        self.jobs = 0
        self.live: dict[str, str] = {}
        """The job of each user without services that has one."""
        self.left_s: dict[str, float] = {}
        self.waits_since_s: dict[str, float] = {}
        """Jobs among them that have no ranks."""

    @property
    def bound_s(self) -> float:
        """See `streams.policies.experts.claims`."""
        return 2 * len(self.users) * (PATIENCE_S + SLACK_S)

    def step(self) -> None:
        world, rng = self.world, self.rng
        for service in [service for service in self.services if service[0] <= world.time_s]:
            self.services.remove(service)
            world.submit(service[1], **{service[2]: endless(rng.randint(1, self.devices))})
        for user in self.users[len(self.with_services) :]:
            if user not in self.live and rng.random() < 0.3:
                self.jobs += 1
                job_id = self.live[user] = f"j{self.jobs}"
                self.left_s[job_id] = rng.choice([0.2, 0.9, 2.5]) * PATIENCE_S * rng.random()
                self.waits_since_s[job_id] = world.time_s
                world.submit(user, **{job_id: training(rng.randint(1, self.devices))})
        begun = dict(world.began_s)
        world.step()
        self.check(begun)
        for user, job_id in list(self.live.items()):
            if job_id in world.has:
                self.left_s[job_id] -= STEP_S
                if self.left_s[job_id] <= 0:
                    world.end(job_id)
                    del self.live[user]

    def check(self, begun: dict[str, float]) -> None:
        world = self.world
        for time_s, job_id, reason in world.changes:
            if time_s == world.time_s and reason == "gave_way":
                assert time_s - begun[job_id] >= PATIENCE_S
        for job_id in self.live.values():
            if job_id in world.has:
                self.waits_since_s.pop(job_id, None)
            else:
                waits_since_s = self.waits_since_s.setdefault(job_id, world.time_s)
                assert world.time_s - waits_since_s <= self.bound_s


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(200))
@given(st.integers(0, 2**32))
def test_finite_jobs_start_next_to_endless_services(seed: int):
    users = Users(random.Random(seed))
    for _ in range(int(4 * users.bound_s / STEP_S)):
        users.step()
    assert users.jobs
