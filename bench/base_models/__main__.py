"""`python -m bench.base_models`: probe every architecture and write docs/base-models.md."""

import logging
import sys
import time
import warnings

from bench.base_models.document import PATH, render
from bench.base_models.survey import architectures, survey


def main() -> None:
    """Say on standard error how far it is."""
    logging.disable()
    warnings.simplefilter("ignore")
    wanted = architectures()
    rows = []
    for row in survey(wanted):
        rows.append(row)
        passed = f"{len(rows)} of {len(wanted)}: {row.architecture} {row.verdict} {row.reason}"
        sys.stderr.write(f"{time.strftime('%X')} {passed}\n")
    PATH.write_text(render(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
