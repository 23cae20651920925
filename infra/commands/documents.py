"""`millrace schemas`."""

import json
import subprocess
from typing import Annotated

import typer

from infra.errors import CommandError
from schemas.documents import SPEC, json_schemas
from schemas.interpreters import python_command

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
    schemas = json_schemas()
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
    _documents("write")
    typer.echo(f"written to {SPEC}")


@app.command()
def check() -> None:
    """Compare the committed documents with the project's own models and with every release."""
    _documents("check")
    typer.echo("the documents are those of the models, and compatible with every release")


def _documents(command: str) -> None:
    """Run a command of `infra.documents`, where no policy of another distribution is loaded.

    Raises:
        CommandError: the command fails; the message is its first fault.
    """
    done = subprocess.run(
        python_command("-m", "infra.documents", command),
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CommandError(done.stderr)
