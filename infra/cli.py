"""The command line: `millrace`. Every command is in a module of `infra.commands`, except `bench`.

An error is one line on standard error and a status that is not 0: 2 for an invalid command line, 3 if
`replay` found no fault but could not verify everything, 130 after Ctrl-C, 1 for everything else.
"""

import ast
import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, NoReturn

import typer

from schemas.errors import EXIT_INTERRUPTED, ReadableError, missing_extra
from schemas.interpreters import isolate_children
from schemas.text import plain

EXIT_FAILED = 1

_DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


COMMANDS: MappingProxyType[str, str] = MappingProxyType(
    {
        "up": "infra.commands.up:up",
        "demo": "infra.commands.demo:demo",
        "submit": "infra.commands.asking:submit",
        "withdraw": "infra.commands.asking:withdraw",
        "watch": "infra.commands.watch:watch",
        "explain": "infra.commands.explain:explain",
        "state": "infra.commands.described_state:state",
        "transfers": "infra.commands.transfers:transfers",
        "prices": "infra.commands.prices:prices",
        "quote": "infra.commands.asking:quote",
        "vendor-quote": "infra.commands.asking:vendor_quote",
        "vendor": "infra.commands.vendor_service:vendor",
        "profile": "infra.commands.profile_steps:profile",
        "replay": "infra.commands.replay:replay",
        "simulate": "infra.commands.simulate:simulate",
        "forecast": "infra.commands.forecast:forecast",
        "nodes": "infra.commands.nodes:app",
        "zone": "infra.commands.nodes:zone",
        "topics": "infra.commands.topics:app",
        "schemas": "infra.commands.documents:app",
        "worker": "infra.commands.foreground:worker",
        "executor": "infra.commands.foreground:executor",
        "solver": "infra.commands.foreground:solver",
        "clock": "infra.commands.foreground:clock",
        "lender": "infra.commands.lender:lender",
        "load": "infra.commands.lender:load",
        "bench": "bench.cli:bench",
    }
)
"""Module and attribute of each command, by its name."""


def load(place: str) -> Any:
    """Return a function with a command's options, or a `typer.Typer` with commands below it."""
    # Imported here, since `--help` does without.
    from streams.installation import install_policies

    install_policies()
    return resolve_name(place)


def summary(place: str) -> str:
    """Return the line about a command in `--help`, from its source: its module is not imported."""
    module, _, attribute = place.partition(":")
    source = Path(__file__).parents[1].joinpath(*module.split(".")).with_suffix(".py")
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef(name=name) if name == attribute:
                return (ast.get_docstring(node) or "").partition("\n")[0]
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as typer_app) if name == attribute:
                (help_text,) = (each.value for each in typer_app.keywords if each.arg == "help")
                return str(ast.literal_eval(help_text))
    raise LookupError(f"{place} is not a command")


def main(arguments: list[str] | None = None, loaded: Callable[[], None] = lambda: None) -> NoReturn:
    """Run a command and end the process with its status; see `run`."""
    isolate_children()
    sys.exit(run(arguments, loaded))


def run(arguments: list[str] | None = None, loaded: Callable[[], None] = lambda: None) -> int:
    """Run a command and return its status; `loaded` is called once the command is imported."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        app = app_with(*arguments[:1])
        loaded()
        return app(args=arguments, prog_name="millrace", standalone_mode=False) or 0
    except typer.TyperException as error:
        if message := error.format_message():  # without any arguments, the help has been shown instead
            # Pydantic, with which typer checks choices, adds this prefix.
            _print_error(message.replace("Value error, ", ""))
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the output. Nothing more may be written, not at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except Exception as error:
        line = fault_line(error)
        if line is None:
            raise
        _print_error(line)
        return error.exit_status if isinstance(error, ReadableError) else EXIT_FAILED


def app_with(*names: str) -> typer.Typer:
    """Return the command line with these commands, without the imports of others.

    The others have their names; and their help, if none of these is a command.
    """
    app = typer.Typer(
        name="millrace",
        help="A market and a scheduler for fine-tuning on a GPU fleet, driven by events on Kafka.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    is_known = not COMMANDS.keys().isdisjoint(names)
    for name, place in COMMANDS.items():
        if name not in names:
            app.command(name, help=None if is_known else summary(place))(_absent)
            continue
        loaded = load(place)
        if isinstance(loaded, typer.Typer):
            app.add_typer(loaded, name=name)
        else:
            app.command(name)(loaded)
    return app


def _absent() -> None:
    """Stand in for a command that was not requested."""


def fault_line(error: Exception) -> str | None:
    """Return the line for an expected error of a command; None for a fault of this program."""
    if isinstance(error, ModuleNotFoundError):
        lacking = missing_extra(error)
        return None if lacking is None else str(lacking)
    if isinstance(error, OSError) and error.errno in _DISK_FAULTS:
        return f"{error.filename or 'a file'} cannot be written: {error.strerror}"
    if not isinstance(error, ReadableError):
        return None
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    further = "" if len(lines) < 2 or error.ends_with_log else f" (and {len(lines) - 1} more lines)"
    return (lines[0] if lines else type(error).__name__) + further


def _print_error(line: str) -> None:
    sys.stderr.write(f"millrace: {plain(line)}\n")


if __name__ == "__main__":
    main()
