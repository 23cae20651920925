"""`python -P -m streams.worker`: a worker whose settings are environment variables `MILLRACE_*`."""

import sys

from schemas.extras import MissingExtraError, require_extra
from schemas.services import EXIT_UNFIT

if __name__ == "__main__":
    try:
        require_extra("worker")
    except MissingExtraError as error:
        sys.stderr.write(f"millrace worker: {error}\n")
        sys.exit(EXIT_UNFIT)
    from streams.worker.worker import run_worker

    run_worker()
