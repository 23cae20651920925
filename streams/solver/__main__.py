"""`python -P -m streams.solver`: a solver whose settings are environment variables `MILLRACE_*`."""

import sys

from schemas.service_base import EXIT_UNFIT, SETTINGS_FAULTS, described_fault
from streams.installation import install_policies
from streams.solver.process import run_solver
from streams.solver.service import SolverSettings

if __name__ == "__main__":
    install_policies()
    try:
        settings = SolverSettings()
    except SETTINGS_FAULTS as error:
        sys.stderr.write(f"millrace solver: settings: {described_fault(error)}\n")
        sys.exit(EXIT_UNFIT)
    run_solver(settings)
