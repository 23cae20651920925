"""`millrace schemas`."""

import json
from typing import Annotated

import typer

from infra.errors import CommandError
from schemas.documents import SPEC, json_schemas
from schemas.documents import check as check_documents
from schemas.documents import write as write_documents

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
    """Write the committed documents anew from the models."""
    write_documents()
    typer.echo(f"written to {SPEC}")


@app.command()
def check() -> None:
    """Compare the committed documents with the models and with every release."""
    faults = check_documents()
    if faults:
        raise CommandError(f"{faults[0]}" + (f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""))
    typer.echo("the documents are those of the models, and compatible with every release")
