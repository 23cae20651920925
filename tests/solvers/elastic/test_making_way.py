"""Room that flexible workers make, and trials that leave no trace."""

import msgpack

from solvers.elastic.cluster import Cluster
from solvers.elastic.making_way import VacatedRoom, make_way


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
    movable = [f"elastic{number}" for number in range(3)]
    assert VacatedRoom(cluster, movable).room(2, "training") == 3
    assert VacatedRoom(cluster, movable).room(3, "training") == 0
    assert VacatedRoom(cluster, ["elastic2"]).room(1, "training") == 3
    assert make_way(cluster, movable, 1, 2, "training") == ["elastic1"]
    assert cluster.room(2, "training") == 1
    assert make_way(cluster, movable, 1, 3, "training") == []
    assert make_way(cluster, movable, 3, 2, "training") == ["elastic0", "elastic2"]
    assert cluster.room(2, "training") == 3


def test_closed_servers_make_no_room():
    cluster = full_cluster()
    cluster.close("s0")
    movable = ["elastic0"]
    assert VacatedRoom(cluster, movable).room(1, "training") == 0
    assert make_way(cluster, movable, 1, 1, "training") == []


def test_a_trial_that_is_not_kept_leaves_no_trace():
    cluster = full_cluster()
    before = msgpack.packb(cluster.state())
    for is_kept in (False, True):
        cluster.begin_trial()
        cluster.shrink("elastic0", 1)
        make_way(cluster, ["elastic1", "elastic2"], 2, 2, "training")
        cluster.place("new", 2, 1, "training", "base")
        cluster.place("new", 1, 1, "training", "flexible")
        cluster.end_trial(is_kept)
        assert (msgpack.packb(cluster.state()) == before) != is_kept
        assert cluster.free_gpus("training") == (2 if is_kept else 0)
