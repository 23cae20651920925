"""The documents of the project's own types, made in a process that has no policies of other distributions.

python -P -m infra.documents write | check | release VERSION
"""

import argparse
import sys
from pathlib import Path

from schemas.documents import SPEC, check, release, write
from streams.installation import install_policies

_DISTRIBUTION = "millrace"


def main(arguments: list[str] | None = None) -> int:
    """The command line: 0 if all is well, 1 with one line per fault."""
    parser = argparse.ArgumentParser(prog="python -m infra.documents", description="The schema documents.")
    parser.add_argument("--directory", type=Path, default=SPEC)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write", help="write the documents from the models")
    commands.add_parser("check", help="compare them with the models and with every release")
    commands.add_parser("release", help="keep them as those of a version").add_argument("version")
    options = parser.parse_args(arguments)
    install_policies(_DISTRIBUTION)
    faults = []
    match options.command:
        case "write":
            write(options.directory)
        case "check":
            faults = check(options.directory)
        case "release":
            try:
                release(options.version, options.directory)
            except (FileExistsError, ValueError) as error:
                faults = [str(error)]
    sys.stderr.writelines(f"{fault}\n" for fault in faults)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
