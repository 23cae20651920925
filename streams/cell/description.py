"""The nodes and loans of a cell for an operator, in values that JSON has."""

from dataclasses import asdict
from typing import Any

from streams.cell.nodes import NodePool


def described_nodes(pool: NodePool) -> dict[str, Any]:
    """Describe the nodes by id: zone, owner, status, the parts of the record, and where each is to go."""
    return {
        node: {
            "zone": zone,
            "owner": pool.layout.owner_of[node],
            "status": pool.status_of(node),
            "membership": pool.record(node).membership,
            "connection": pool.record(node).connection,
            "scheduling": pool.record(node).scheduling,
            "leaves": asdict(pool.leaving[node]) if node in pool.leaving else None,
        }
        for node, zone in pool.layout.zone_of.items()
    }


def described_loans(pool: NodePool) -> dict[str, Any]:
    """Describe the loans by server."""
    return {
        server: {
            **asdict(loan),
            "status": pool.loan_status(server),
            "due_s": loan.due_s if server in pool.leaving else None,
        }
        for server, loan in pool.loans.items()
    }
