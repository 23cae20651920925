"""Loss of a server by a running job: other workers replace its base ones."""

from solvers.elastic.cluster import Cluster
from solvers.elastic.cluster_parts import Kind, Part, Server, class_of, may_stand_in


def leave(cluster: Cluster, job_id: str, server_id: str) -> dict[Kind, int]:
    """Remove all workers of a job from one server, as when the server is given back.

    Equally fast flexible workers on other servers become base ones, as many as base ones are lost: first on
    servers with firm workers, then on those with the most GPUs in use; ties by id. If the flexible workers
    are on training servers and the base ones on loaned ones, they become the whole base demand if they
    suffice. Remaining base workers then become flexible ones, or are removed if flexible ones are left.

    Returns:
        The real workers lost on this server, by kind.
    """
    parts = cluster.parts_of(job_id)
    lost = {kind: part.workers[server_id] for kind, part in parts.items() if server_id in part.workers}
    base, flexible = parts.get("base"), parts.get("flexible")
    base_count = sum(base.workers.values()) if base else 0
    if "flexible" in lost:
        cluster.remove_workers(job_id, "flexible", server_id, lost["flexible"])
    if base and flexible and class_of(base) == class_of(flexible):
        _make_firm(cluster, job_id, flexible, lost.get("base", 0))
    for kind, count in lost.items():
        if kind != "flexible":
            cluster.remove_workers(job_id, kind, server_id, count)
    if base is None or flexible is None or "base" not in lost:
        return lost
    if may_stand_in(flexible, base) and sum(flexible.workers.values()) >= base_count:
        _stand_in(cluster, job_id, base, flexible, base_count)
    return lost


def _stand_in(cluster: Cluster, job_id: str, base: Part, flexible: Part, count: int) -> None:
    """Replace the base demand by so many flexible workers of another pool."""
    left = dict(base.workers)
    for server_id, workers in left.items():
        cluster.remove_workers(job_id, "base", server_id, workers)
    _make_firm(cluster, job_id, flexible, count)
    if "flexible" not in cluster.parts_of(job_id):
        for server_id, workers in left.items():
            cluster.add_workers(job_id, "flexible", server_id, workers, base.gpus_per_worker)


def _make_firm(cluster: Cluster, job_id: str, flexible: Part, missing: int) -> None:
    """Make so many of a job's flexible workers, or all of them, part of its base demand."""
    for server in sorted(map(cluster.server, flexible.workers), key=_made_firm_first):
        count = min(missing, flexible.workers[server.server_id])
        if count:
            cluster.make_firm(job_id, server.server_id, count)
            missing -= count


def _made_firm_first(server: Server) -> tuple[bool, int, str]:
    """Return the key that sorts servers for making flexible workers on them base ones."""
    return (server.firm_gpus == 0, server.free - server.gpus, server.server_id)
