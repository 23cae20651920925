"""What becomes of a running job's workers when it loses a server: others take the place of its base ones."""

from solvers.elastic.cluster import Cluster
from solvers.elastic.cluster_parts import Kind, Part, Server, class_of, may_stand_in


def leave(cluster: Cluster, job_id: str, server_id: str) -> dict[Kind, int]:
    """Take a job's workers on one server away, all kinds, as when the server is given back.

    Flexible workers elsewhere that are equally fast become base ones, as many as are lost of those: first on
    servers with workers that nobody can lose, then on those with the most GPUs in use; ties by id. If they
    are on training servers and base ones on loaned ones, they become all of the base demand, where they are
    enough for that; base ones that are left become flexible ones then, or go where there still are others.

    Returns:
        The real workers that are lost on this server.
    """
    parts = cluster.parts_of(job_id)
    lost = {kind: part.workers[server_id] for kind, part in parts.items() if server_id in part.workers}
    base, flexible = parts.get("base"), parts.get("flexible")
    base_count = sum(base.workers.values()) if base else 0
    if "flexible" in lost:
        cluster.take(job_id, "flexible", server_id, lost["flexible"])
    if base and flexible and class_of(base) == class_of(flexible):
        _make_firm(cluster, job_id, flexible, lost.get("base", 0))
    for kind, count in lost.items():
        if kind != "flexible":
            cluster.take(job_id, kind, server_id, count)
    if base is None or flexible is None or "base" not in lost:
        return lost
    if may_stand_in(flexible, base) and sum(flexible.workers.values()) >= base_count:
        _stand_in(cluster, job_id, base, flexible, base_count)
    return lost


def _stand_in(cluster: Cluster, job_id: str, base: Part, flexible: Part, count: int) -> None:
    """Have so many flexible workers of another pool be the base demand."""
    left = dict(base.workers)
    for server_id, workers in left.items():
        cluster.take(job_id, "base", server_id, workers)
    _make_firm(cluster, job_id, flexible, count)
    if "flexible" not in cluster.parts_of(job_id):
        for server_id, workers in left.items():
            cluster.put(job_id, "flexible", server_id, workers, base.gpus_per_worker)


def _make_firm(cluster: Cluster, job_id: str, flexible: Part, missing: int) -> None:
    """Have so many of a job's flexible workers, or all of them, be part of its base demand."""
    for server in sorted(map(cluster.server, flexible.workers), key=_made_firm_first):
        count = min(missing, flexible.workers[server.server_id])
        if count:
            cluster.make_firm(job_id, server.server_id, count)
            missing -= count


def _made_firm_first(server: Server) -> tuple[bool, int, str]:
    """Sorts servers into the order in which flexible workers on them become base ones."""
    return (server.firm_gpus == 0, server.free - server.gpus, server.server_id)
