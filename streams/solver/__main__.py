"""`python -m streams.solver`: a solver whose settings are environment variables `MILLRACE_*`."""

import sys

from pydantic import ValidationError

from schemas.codec import describe
from streams.solver.process import EXIT_UNFIT, run_solver
from streams.solver.service import SolverSettings

if __name__ == "__main__":
    try:
        settings = SolverSettings()
    except ValidationError as error:
        sys.stderr.write(f"millrace solver: settings: {describe(error)}\n")
        sys.exit(EXIT_UNFIT)
    run_solver(settings)
