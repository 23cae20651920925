"""The roles of Kafka's clients."""

from typing import Literal, get_args

Role = Literal["users", "vendors", "inference", "operators", "nodes", "worker", "solver", "auditor"]
ROLES: tuple[Role, ...] = get_args(Role)
