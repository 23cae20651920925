"""`millrace schemas`.

It writes and checks the documents by a process that has no policies of other distributions:

python -P -m infra.commands.documents write | check | release VERSION
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from infra.errors import CommandError
from schemas import documents
from schemas.interpreters import python_command
from streams.installation import install_policies

_DISTRIBUTION = "millrace"

app = typer.Typer(help="Print, write and check the schemas of all records.", no_args_is_help=True)


@app.command("print")
def print_schema(
    ce_type: Annotated[
        str | None,
        typer.Argument(
            help="A CloudEvents type; all of them if none is given.", metavar="TYPE", show_default=False
        ),
    ] = None,
) -> None:
    """Print a type's JSON Schema, or the list of types."""
    schemas = documents.json_schemas()
    if ce_type is None:
        for name in sorted(schemas):
            typer.echo(name)
    elif ce_type in schemas:
        typer.echo(json.dumps(schemas[ce_type], indent=2, ensure_ascii=False))
    else:
        raise CommandError(f"there is no type {ce_type}: `millrace schemas print` lists the types")


@app.command()
def write() -> None:
    """Write the committed documents from the project's own models."""
    _run_main("write")
    typer.echo(f"written to {documents.SPEC}")


@app.command()
def check() -> None:
    """Compare the committed documents with the project's own models and with every release."""
    _run_main("check")
    typer.echo("the documents are those of the models, and compatible with every release")


def _run_main(command: str) -> None:
    """Run a command of `main` in another process.

    Raises:
        CommandError: the command fails; the message is its first fault.
    """
    program = python_command("-m", "infra.commands.documents", command)
    done = subprocess.run(program, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise CommandError(done.stderr)


def main(arguments: list[str] | None = None) -> int:
    """The command line: 0 if all is well, 1 with one line per fault."""
    parser = argparse.ArgumentParser(
        prog="python -m infra.commands.documents", description="The schema documents."
    )
    parser.add_argument("--directory", type=Path, default=documents.SPEC)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write", help="write the documents from the models")
    commands.add_parser("check", help="compare them with the models and with every release")
    commands.add_parser("release", help="keep them as those of a version").add_argument("version")
    options = parser.parse_args(arguments)
    install_policies(_DISTRIBUTION)
    faults = []
    match options.command:
        case "write":
            documents.write(options.directory)
        case "check":
            faults = documents.check(options.directory)
        case "release":
            try:
                documents.release(options.version, options.directory)
            except (FileExistsError, ValueError) as error:
                faults = [str(error)]
    sys.stderr.writelines(f"{fault}\n" for fault in faults)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
