"""`python -P -m executors.node --node ID`: serve a node; all other settings come from `MILLRACE_*`."""

import argparse
import sys

from executors.node import ExecutorSettings, main
from schemas.services import EXIT_UNFIT, SETTINGS_FAULTS, described_fault


def _settings() -> ExecutorSettings:
    parser = argparse.ArgumentParser(prog="python -m executors.node", description=__doc__)
    parser.add_argument("--node", help="the node to serve; MILLRACE_NODE if not given")
    given = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    try:
        return ExecutorSettings(**given)
    except SETTINGS_FAULTS as error:
        sys.stderr.write(f"millrace executor: settings: {described_fault(error)}\n")
        raise SystemExit(EXIT_UNFIT) from None


if __name__ == "__main__":
    main(_settings())
