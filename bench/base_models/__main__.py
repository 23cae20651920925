"""`python -m bench.base_models`: probe every architecture and write docs/base-models.md."""

import logging
import sys
import time
import warnings

from bench.base_models.document import PATH, render
from bench.base_models.survey import architectures, survey
from bench.report import commit


def main() -> None:
    """Probe all, state the progress on standard error, and write the page."""
    logging.disable()
    warnings.simplefilter("ignore")
    measured, wanted = commit(), architectures()
    rows = []
    for row in survey(wanted):
        rows.append(row)
        passed = f"{len(rows)} of {len(wanted)}: {row.architecture} {row.verdict} {row.reason}"
        sys.stderr.write(f"{time.strftime('%X')} {passed}\n")
    PATH.write_text(render(rows, measured), encoding="utf-8")


if __name__ == "__main__":
    main()
