"""The settings of a solver: environment variables `MILLRACE_*`."""

from typing import Annotated

from pydantic import Field

from schemas.base import Identifier
from schemas.service_settings import ServiceSettings


class SolverSettings(ServiceSettings):
    """How one solver process runs."""

    solver_group: Identifier = "solvers"
    """Solvers of one group share the requests among them; the consumer group is `<prefix>.<group>`."""
    session_timeout_s: Annotated[float, Field(ge=1, le=60)] = 8.0
    """A solver that is silent for longer is taken for dead, and another answers its requests."""
    heartbeat_s: Annotated[float, Field(gt=0, le=20)] = 2.0
    solve_overrun_s: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    """A solve that takes so much longer than its request's time limit is broken off, and answered without
    plans."""
    max_request_age_s: Annotated[float, Field(gt=0)] = 86_400.0
    """A request whose record is older is answered without plans, at once: its slots are over. So a group
    whose offsets were lost does not solve a long history before it comes to the present; `inf` solves all."""
