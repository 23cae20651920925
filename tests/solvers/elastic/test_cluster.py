"""Where workers are placed, what leaves first, and what holds whatever is done to a cluster."""

import msgpack
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from solvers.elastic.cluster import Cluster, placing_order
from solvers.elastic.making_room import leave
from tests.support.examples import examples

POOLS = ("training", "loaned")


def cluster(training=(), loaned=(), factor=1, **options):
    """Servers t0, t1, ... and l0, l1, ... of so many GPUs."""
    made = Cluster(**options)
    for number, gpus in enumerate(training):
        made.add_server(f"t{number}", "training", gpus)
    for number, gpus in enumerate(loaned):
        made.add_server(f"l{number}", "loaned", gpus, factor)
    return made


def test_worker_goes_to_server_it_fills_most():
    servers = cluster(training=(8, 8, 8))
    servers.place("five", 1, 5, "training", "inelastic")
    servers.place("seven", 1, 7, "training", "inelastic")
    assert servers.place("one", 1, 1, "training", "inelastic") == {"t1": 1}
    assert servers.place("two", 1, 2, "training", "inelastic") == {"t0": 1}
    assert servers.place("three", 1, 3, "training", "inelastic") == {"t2": 1}


def test_workers_of_a_job_fill_server_after_server():
    servers = cluster(training=(4, 4, 4))
    servers.place("a", 1, 2, "training", "inelastic")
    assert servers.place("b", 4, 2, "training", "inelastic") == {"t0": 1, "t1": 2, "t2": 1}


def test_without_room_for_all_none_is_placed():
    servers = cluster(training=(4, 3))
    assert servers.place("a", 4, 2, "training", "inelastic") is None
    assert servers.server("t0").is_empty
    assert servers.jobs() == []
    assert servers.place("a", 3, 2, "training", "inelastic") == {"t1": 1, "t0": 2}


def test_decreasing_gpus_per_worker_then_arrival():
    assert sorted([(1, 0), (4, 3), (4, 2), (2, 1)], key=lambda job: placing_order(*job)) == [
        (4, 2), (4, 3), (2, 1), (1, 0)
    ]  # fmt: skip


def test_base_and_flexible_workers_use_separate_loans():
    servers = cluster(loaned=(8, 8, 8))
    assert servers.place("a", 2, 2, "loaned", "base") == {"l0": 2}
    assert servers.place("a", 2, 2, "loaned", "flexible") == {"l1": 2}
    assert servers.place("b", 1, 1, "loaned", "flexible") == {"l1": 1}
    assert servers.place("c", 1, 4, "loaned", "inelastic") == {"l0": 1}
    assert servers.place("d", 2, 4, "loaned", "base") == {"l2": 2}
    assert [server for server in servers.servers("loaned") if not servers.server(server).firm_gpus] == ["l1"]


def test_other_group_is_used_last():
    servers = cluster(loaned=(4, 4))
    servers.place("a", 1, 1, "loaned", "base")
    servers.place("b", 1, 1, "loaned", "flexible")
    assert servers.place("c", 1, 3, "loaned", "flexible") == {"l1": 1}
    assert servers.place("d", 1, 2, "loaned", "flexible") == {"l0": 1}
    assert servers.remove("c") == {"l1": 1}
    assert servers.place("e", 1, 3, "loaned", "base") == {"l1": 1}
    assert servers.server("l1").firm_gpus == 3


def test_without_separate_groups_all_workers_are_packed_together():
    servers = cluster(loaned=(4, 4), separates_groups=False)
    assert servers.place("a", 1, 1, "loaned", "base") == {"l0": 1}
    assert servers.place("a", 1, 1, "loaned", "flexible") == {"l0": 1}


def test_training_servers_are_not_grouped():
    servers = cluster(training=(4, 4))
    servers.place("a", 1, 1, "training", "base")
    assert servers.place("a", 1, 1, "training", "flexible") == {"t0": 1}


def test_three_loaned_workers_equal_one():
    # Erratum L4: T4 against V100.
    servers = cluster(loaned=(8, 8), factor=3)
    assert servers.free_gpus("loaned") == pytest.approx(16 / 3)
    assert servers.room(1, "loaned") == 5
    assert servers.place("a", 3, 1, "loaned", "base") == {"l0": 8, "l1": 1}
    assert servers.normalised_workers("a", "base") == 3
    assert servers.free_gpus("loaned") == pytest.approx(7 / 3)
    assert servers.place("b", 3, 1, "loaned", "base") is None


def test_workers_of_kind_use_fastest_class():
    servers = Cluster()
    servers.add_server("slow", "loaned", 9, 3)
    servers.add_server("fast", "loaned", 2, 2)
    assert servers.place("a", 2, 1, "loaned", "base") == {"slow": 6}
    assert servers.place("b", 1, 1, "loaned", "base") == {"fast": 2}
    assert servers.place("b", 1, 1, "loaned", "flexible") == {"slow": 3}
    servers.remove("a")
    assert servers.place("b", 1, 1, "loaned", "base") is None


def test_shrinking_frees_servers():
    servers = cluster(loaned=(4, 4, 4, 4))
    servers.place("base", 1, 3, "loaned", "base")
    servers.place("a", 8, 1, "loaned", "flexible")
    servers.place("b", 1, 1, "loaned", "flexible")
    servers.place("a", 2, 1, "loaned", "flexible")
    assert servers.workers_of("a") == {"flexible": {"l1": 4, "l2": 4, "l3": 2}}
    assert servers.shrink("a", 3) == {"l3": 2, "l1": 1}
    # A closed server is to be given back, and goes first.
    servers.close("l2")
    assert servers.shrink("a", 5) == {"l2": 4, "l1": 1}
    assert servers.workers_of("a") == {"flexible": {"l1": 2}}
    with pytest.raises(ValueError, match="job a has 2 flexible workers: 3 cannot be removed"):
        servers.shrink("a", 3)


def test_flexible_workers_leave_emptiable_servers_first():
    servers = cluster(loaned=(4, 4))
    servers.place("base", 1, 2, "loaned", "base")
    servers.place("a", 6, 1, "loaned", "flexible")
    assert servers.workers_of("a") == {"flexible": {"l1": 4, "l0": 2}}
    assert servers.shrink("a", 4) == {"l1": 4}


def test_flexible_workers_replace_leaving_base_ones():
    servers = cluster(loaned=(2, 4, 4, 4))
    servers.place("a", 2, 1, "loaned", "base")
    servers.place("a", 6, 1, "loaned", "flexible")
    servers.place("b", 1, 2, "loaned", "base")
    assert servers.workers_of("a") == {"base": {"l0": 2}, "flexible": {"l1": 4, "l2": 2}}
    servers.place("a", 1, 1, "loaned", "base")
    assert servers.workers_of("a")["base"] == {"l0": 2, "l3": 1}
    assert leave(servers, "a", "l0") == {"base": 2}
    # One server of flexible workers is no longer one, rather than both.
    assert servers.workers_of("a") == {"base": {"l3": 1, "l1": 2}, "flexible": {"l1": 2, "l2": 2}}
    assert leave(servers, "a", "l1") == {"base": 2, "flexible": 2}
    assert servers.workers_of("a") == {"base": {"l3": 1, "l2": 2}}
    assert leave(servers, "a", "l2") == {"base": 2}
    assert servers.workers_of("a") == {"base": {"l3": 1}}


@pytest.mark.parametrize(
    ("flexible", "after"),
    [
        (4, {"base": {"t0": 4}, "flexible": {"l1": 2}}),
        (6, {"base": {"t0": 4}, "flexible": {"t1": 2}}),
        (3, {"base": {"l1": 2}, "flexible": {"t0": 3}}),
    ],
)
def test_enough_flexible_workers_replace_base_demand(flexible, after):
    servers = cluster(training=(4, 4), loaned=(2, 2))
    servers.place("a", 4, 1, "loaned", "base")
    servers.place("a", flexible, 1, "training", "flexible")
    assert leave(servers, "a", "l0") == {"base": 2}
    assert servers.workers_of("a") == after


def test_nothing_new_is_placed_on_a_closed_server():
    servers = cluster(training=(2, 2))
    servers.place("a", 1, 1, "training", "inelastic")
    servers.close("t0")
    assert servers.free_gpus("training") == 2
    assert servers.place("b", 1, 1, "training", "inelastic") == {"t1": 1}
    assert servers.place("c", 2, 1, "training", "inelastic") is None
    servers.remove("a")
    assert servers.free_gpus("training") == 1
    servers.open("t0")
    assert servers.place("c", 2, 1, "training", "inelastic") == {"t1": 1, "t0": 1}


def test_what_cannot_be_is_refused():
    servers = cluster(training=(2,))
    servers.place("a", 1, 1, "training", "base")
    with pytest.raises(ValueError, match="server t0 is in the cluster already"):
        servers.add_server("t0", "loaned", 8)
    with pytest.raises(ValueError, match="server t1 has 0 GPUs"):
        servers.add_server("t1", "training", 0)
    with pytest.raises(ValueError, match="server t0 still has workers of a"):
        servers.remove_server("t0")
    with pytest.raises(ValueError, match="job b: 0 workers"):
        servers.place("b", 0, 1, "training", "base")
    with pytest.raises(ValueError, match="job a has base workers of 1 GPUs in pool training"):
        servers.place("a", 1, 2, "training", "base")


JOBS = st.sampled_from([f"j{number}" for number in range(8)])
KINDS = st.sampled_from(["base", "flexible", "inelastic"])


def restored_from(cluster, separates=True):
    """A cluster of the same servers that goes on where this one is."""
    other = Cluster(separates)
    for server in map(cluster.server, cluster.servers()):
        other.add_server(server.server_id, server.pool, server.gpus, server.workers_per_worker)
    other.restore(msgpack.unpackb(msgpack.packb(cluster.state())))
    return other


class ClusterMachine(RuleBasedStateMachine):
    """A cluster, compared with a plain record of the workers on each server."""

    @initialize(separates=st.booleans())
    def begin(self, separates):
        self.separates = separates
        self.cluster = Cluster(separates)
        self.servers = {}  # id: [pool, gpus, factor, is_open]
        self.workers = {}  # (job, kind): {server: real workers}
        self.sizes = {}  # (job, kind): (pool, factor, gpus per worker)
        self.numbers = 0

    def used(self, server, kinds=("base", "flexible", "inelastic")):
        return sum(
            workers.get(server, 0) * self.sizes[key][2]
            for key, workers in self.workers.items()
            if key[1] in kinds
        )

    def free(self, server):
        return self.servers[server][1] - self.used(server)

    def room(self, pool, factor, gpus):
        return sum(
            self.free(server) // gpus
            for server, (of_pool, _, of_factor, is_open) in self.servers.items()
            if (of_pool, of_factor, is_open) == (pool, factor, True)
        )

    @rule(pool=st.sampled_from(POOLS), gpus=st.sampled_from([1, 4, 8]), factor=st.sampled_from([1, 2, 3]))
    def add(self, pool, gpus, factor):
        # Ids are not in the order in which servers join.
        server = f"s{(self.numbers * 7) % 10}{self.numbers}"
        self.numbers += 1
        self.cluster.add_server(server, pool, gpus, factor)
        self.servers[server] = [pool, gpus, factor, True]

    @precondition(lambda self: self.servers)
    @rule(data=st.data())
    def remove_server(self, data):
        server = data.draw(st.sampled_from(sorted(self.servers)))
        if self.used(server):
            with pytest.raises(ValueError, match="still has workers"):
                self.cluster.remove_server(server)
        else:
            self.cluster.remove_server(server)
            del self.servers[server]

    @precondition(lambda self: self.servers)
    @rule(data=st.data(), is_open=st.booleans())
    def close_or_open(self, data, is_open):
        server = data.draw(st.sampled_from(sorted(self.servers)))
        (self.cluster.open if is_open else self.cluster.close)(server)
        self.servers[server][3] = is_open

    @rule(
        job=JOBS, workers=st.integers(1, 6), gpus=st.sampled_from([1, 2, 3, 8]), pool=st.sampled_from(POOLS),
        kind=KINDS,
    )  # fmt: skip
    def place(self, job, workers, gpus, pool, kind):
        key = (job, kind)
        if key in self.sizes:
            pool, factor, gpus = self.sizes[key]
            factors = [factor]
        else:
            factors = sorted({server[2] for server in self.servers.values() if server[0] == pool})
        fitting = [factor for factor in factors if self.room(pool, factor, gpus) >= workers * factor]
        others = ("base", "inelastic") if kind == "flexible" else ("flexible",)
        room_apart = sum(
            self.free(server) // gpus
            for server, (*of, is_open) in self.servers.items()
            if fitting and (of[0], of[2]) == (pool, fitting[0]) and is_open and not self.used(server, others)
        )
        mixed = self.mixed(pool)
        placed = self.cluster.place(job, workers, gpus, pool, kind)
        if not fitting:
            assert placed is None
            return
        assert sum(placed.values()) == workers * fitting[0]
        for server, count in placed.items():
            of_pool, _, factor, is_open = self.servers[server]
            assert (of_pool, factor, is_open) == (pool, fitting[0], True)
            assert count * gpus <= self.free(server)
        self.sizes[key] = (pool, fitting[0], gpus)
        now = self.workers.setdefault(key, {})
        for server, count in placed.items():
            now[server] = now.get(server, 0) + count
        if self.separates and pool == "loaned" and room_apart >= workers * fitting[0]:
            assert self.mixed(pool) == mixed

    def mixed(self, pool):
        """Return the servers with both flexible and other workers."""
        return {
            server
            for server, fields in self.servers.items()
            if fields[0] == pool
            and self.used(server, ("flexible",))
            and self.used(server, ("base", "inelastic"))
        }

    def forget(self, key, removed):
        for server, count in removed.items():
            self.workers[key][server] -= count
            if not self.workers[key][server]:
                del self.workers[key][server]
        if not self.workers[key]:
            del self.workers[key], self.sizes[key]

    @rule(job=JOBS, kind=st.none() | KINDS)
    def remove(self, job, kind):
        removed = self.cluster.remove(job, kind)
        expected = {}
        for key in [key for key in self.workers if key[0] == job and kind in (None, key[1])]:
            for server, count in self.workers[key].items():
                expected[server] = expected.get(server, 0) + count
            self.forget(key, dict(self.workers[key]))
        assert removed == expected

    @rule(job=JOBS, data=st.data())
    def shrink(self, job, data):
        key = (job, "flexible")
        have = self.cluster.normalised_workers(job, "flexible")
        assert have == (sum(self.workers[key].values()) // self.sizes[key][1] if key in self.workers else 0)
        if have:
            workers = data.draw(st.integers(0, have))
            factor = self.sizes[key][1]
            removed = self.cluster.shrink(job, workers)
            assert sum(removed.values()) == workers * factor
            self.forget(key, removed)

    def servers_of(self, job):
        return list(dict.fromkeys(id for of in self.cluster.workers_of(job).values() for id in of))

    @rule(job=JOBS, data=st.data())
    def leave(self, job, data):
        servers = self.servers_of(job)
        if not servers:
            return
        server = data.draw(st.sampled_from(servers))
        lost = leave(self.cluster, job, server)
        assert lost == {
            key[1]: of[server] for key, of in self.workers.items() if key[0] == job and server in of
        }
        base, flexible = self.sizes.get((job, "base"), (0, 0)), self.sizes.get((job, "flexible"), (1, 1))
        one_class, one_speed = base[:2] == flexible[:2], base[1] == flexible[1]
        base_count = sum(self.workers.get((job, "base"), {}).values())
        spare = sum(
            count for each, count in self.workers.get((job, "flexible"), {}).items() if each != server
        )
        made_up = min(lost.get("base", 0), spare) if one_class else 0
        expected = {
            key[1]: sum(of.values())
            - lost.get(key[1], 0)
            + {"base": made_up, "flexible": -made_up}.get(key[1], 0)
            for key, of in self.workers.items()
            if key[0] == job
        }
        pools = flexible[0], base[0]
        if "base" in lost and one_speed and pools == ("training", "loaned") and spare >= base_count:
            left = base_count - lost["base"]
            expected |= {"base": base_count, "flexible": spare - base_count or left}
        for key in [key for key in self.workers if key[0] == job]:
            del self.workers[key], self.sizes[key]
        for kind, part in self.cluster.parts_of(job).items():
            assert sum(part.workers.values()) == expected.pop(kind)
            self.workers[job, kind] = dict(part.workers)
            self.sizes[job, kind] = (part.pool, part.workers_per_worker, part.gpus_per_worker)
        assert not any(expected.values())
        assert server not in self.servers_of(job)

    @rule()
    def continue_from_its_state(self):
        restored = restored_from(self.cluster, self.separates)
        assert restored.state() == self.cluster.state()
        self.cluster = restored

    @invariant()
    def everything_is_where_it_was_put(self):
        for server, (pool, gpus, factor, is_open) in self.servers.items():
            kept = self.cluster.server(server)
            assert 0 <= kept.free == self.free(server) <= gpus
            assert kept.is_empty == (self.used(server) == 0)
            assert kept.is_open == is_open
            assert (kept.pool, kept.workers_per_worker) == (pool, factor)
            jobs = sorted({key[0] for key, workers in self.workers.items() if server in workers})
            assert kept.jobs == jobs
            assert kept.firm_gpus == self.used(server, ("base", "inelastic"))
        assert set(self.cluster.servers()) == set(self.servers)
        assert set(self.cluster.jobs()) == {job for job, _ in self.workers}
        for (job, kind), workers in self.workers.items():
            assert self.cluster.workers_of(job)[kind] == workers
            assert self.cluster.pool_of_workers(job, kind) == self.sizes[job, kind][0]
        for pool in POOLS:
            free = sum(
                self.free(server) / factor
                for server, (of_pool, _, factor, is_open) in self.servers.items()
                if of_pool == pool and is_open
            )
            assert self.cluster.free_gpus(pool) == pytest.approx(free)


TestClusterMachine = ClusterMachine.TestCase
TestClusterMachine.settings = settings(max_examples=examples(150), stateful_step_count=30, deadline=None)


def test_restored_cluster_places_alike():
    def churn(servers, first, last):
        placed = []
        for number in range(first, last):
            kind = ("base", "flexible", "inelastic")[number % 3]
            placed.append(
                servers.place(f"j{number}", 1 + number % 5, 1 + number * 7 % 4, POOLS[number % 2], kind)
            )
            if number % 4 == 3:
                servers.remove(f"j{number - 17}")
        return placed

    one = cluster(training=(8,) * 9, loaned=(8,) * 9, factor=3)
    churn(one, 0, 100)
    other = restored_from(one)
    assert churn(one, 100, 200) == churn(other, 100, 200)
    assert one.state() == other.state()
