"""Room that flexible workers make, and trials that leave no trace."""

import random

import msgpack
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from solvers.elastic.cluster import Cluster
from solvers.elastic.making_room import MovableWorkers
from tests.support.examples import examples


def full_cluster():
    """Three servers of four GPUs, each with two workers that stay and two that may go."""
    cluster = Cluster(separates_groups=False)
    for number in range(3):
        cluster.add_server(f"s{number}", "training", 4)
        cluster.place(f"firm{number}", 1, 1, "training", "inelastic")
        cluster.place(f"elastic{number}", 1, 1, "training", "base")
        cluster.place(f"elastic{number}", 2, 1, "training", "flexible")
    return cluster


def test_workers_go_where_the_fewest_must():
    cluster = full_cluster()
    cluster.shrink("elastic1", 1)
    movable = MovableWorkers(cluster, [f"elastic{number}" for number in range(3)])
    assert movable.room(2, "training") == 3
    assert movable.room(3, "training") == 0
    assert MovableWorkers(cluster, ["elastic2"]).room(1, "training") == 3
    assert movable.make_room(1, 2, "training") == ["elastic1"]
    assert cluster.room(2, "training") == 1
    assert movable.make_room(1, 3, "training") == []
    assert movable.make_room(3, 2, "training") == ["elastic0", "elastic2"]
    assert cluster.room(2, "training") == 3


def test_closed_servers_make_no_room():
    cluster = full_cluster()
    cluster.close("s0")
    movable = MovableWorkers(cluster, ["elastic0"])
    assert movable.room(1, "training") == 0
    assert movable.make_room(1, 1, "training") == []


def test_room_ends_at_worker_limit():
    """A worker there is a third of one."""
    cluster = Cluster(most_workers=7)
    for number in range(3):
        cluster.add_server(f"s{number}", "loaned", 4, workers_per_worker=3)
    cluster.place("elastic", 1, 1, "loaned", "base")
    cluster.place("elastic", 1, 1, "loaned", "flexible")
    movable = MovableWorkers(cluster, ["elastic"])
    assert (cluster.room(1, "loaned"), movable.room(1, "loaned")) == (2, 2)
    assert movable.make_room(3, 1, "loaned") == []
    assert cluster.place("wide", 3, 1, "loaned", "base") is None
    assert cluster.place("wide", 2, 1, "loaned", "base") is not None


def test_discarded_trial_leaves_no_trace():
    cluster = full_cluster()
    before = msgpack.packb(cluster.state())
    for is_kept in (False, True):
        cluster.begin_trial()
        cluster.shrink("elastic0", 1)
        MovableWorkers(cluster, ["elastic1", "elastic2"]).make_room(2, 2, "training")
        cluster.place("new", 2, 1, "training", "base")
        cluster.place("new", 1, 1, "training", "flexible")
        cluster.end_trial(is_kept)
        assert (msgpack.packb(cluster.state()) == before) != is_kept
        assert cluster.free_gpus("training") == (2 if is_kept else 0)


class Crowd:
    """A drawn cluster of two classes of servers, and jobs of which some have flexible workers."""

    def __init__(self, rng):
        self.rng = rng
        self.cluster = Cluster(separates_groups=rng.random() < 0.5)
        for number in range(rng.randint(1, 6)):
            pool, factor = rng.choice([("training", 1), ("loaned", 1), ("loaned", 3)])
            self.cluster.add_server(f"s{number}", pool, rng.choice([4, 8]), factor)
        self.jobs = []
        for number in range(rng.randint(1, 8)):
            job_id, size, pool = f"j{number}", rng.choice([1, 1, 2, 3]), rng.choice(["training", "loaned"])
            if self.cluster.place(job_id, 1, size, pool, "base"):
                self.jobs.append(job_id)
                pool = rng.choice([pool, "training", "loaned"])
                room = self.cluster.flexible_room(job_id, size, pool)
                if room:
                    self.cluster.place(job_id, rng.randint(1, room), size, pool, "flexible")
        for server in self.cluster.servers():
            if rng.random() < 0.1:
                self.cluster.close(server)

    def shape(self):
        """Workers, GPUs per worker and a pool."""
        return self.rng.randint(1, 6), self.rng.choice([1, 2, 3, 4]), self.rng.choice(["training", "loaned"])

    def movable(self):
        return MovableWorkers(self.cluster, self.jobs)


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=examples(1_500), deadline=None)
def test_what_it_follows_is_what_there_is(seed):
    """After any changes, its answers equal those of a fresh computation."""
    crowd = Crowd(random.Random(seed))
    cluster, kept = crowd.cluster, crowd.movable()
    for number in range(4):
        workers, size, pool = crowd.shape()
        assert kept.room(size, pool) == crowd.movable().room(size, pool)
        before = msgpack.packb(cluster.state())
        cluster.begin_trial()
        anew = crowd.movable().make_room(workers, size, pool)
        after = msgpack.packb(cluster.state())
        cluster.end_trial(False)
        assert msgpack.packb(cluster.state()) == before
        assert kept.make_room(workers, size, pool) == anew
        assert msgpack.packb(cluster.state()) == after
        kept.refresh(cluster.place(f"new{number}", workers, size, pool, "inelastic") or ())


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=examples(1_500), deadline=None)
def test_room_is_made_only_where_possible(seed):
    crowd = Crowd(random.Random(seed))
    cluster, movable = crowd.cluster, crowd.movable()
    workers, size, pool = crowd.shape()
    before = {job_id: cluster.workers_of(job_id) for job_id in crowd.jobs}
    can_have = movable.room(size, pool)
    assume(cluster.room(size, pool) < workers)
    losers = movable.make_room(workers, size, pool)
    assert bool(losers) == (cluster.room(size, pool) >= workers) == (can_have >= workers)
    for job_id in crowd.jobs:
        after = cluster.workers_of(job_id)
        assert (after == before[job_id]) == (job_id not in losers)
        assert after["base"] == before[job_id]["base"]
        if "flexible" in after:
            part = cluster.parts_of(job_id)["flexible"]
            assert sum(part.workers.values()) % part.workers_per_worker == 0


@pytest.mark.parametrize("sizes", [(2, 2), (1, 3), (3, 1)])
def test_leaving_ends_when_room_suffices(sizes):
    cluster = Cluster()
    cluster.add_server("a", "loaned", 8)
    for job_id, size in zip(("first", "second"), sizes, strict=True):
        cluster.place(job_id, 1, size, "loaned", "base")
    for job_id, size in zip(("first", "second"), sizes, strict=True):
        cluster.place(job_id, 1, size, "loaned", "flexible")
    assert cluster.free_gpus("loaned") == 0
    movable = MovableWorkers(cluster, ["second", "first"])
    assert movable.make_room(1, 1, "loaned") == ["second"]
    assert movable.make_room(sizes[1] + 1, 1, "loaned") == ["first"]
