"""The roles of those who connect to Kafka."""

from typing import Literal, get_args

Role = Literal["users", "vendors", "inference", "operators", "nodes", "worker", "solver", "auditor"]
ROLES: tuple[Role, ...] = get_args(Role)
