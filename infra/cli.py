"""The command line: `millrace`. Every command is in a module of `infra.commands`, except `bench`.

An error is one line on standard error and a status that is not 0: 2 for an invalid command line, 3 if
`replay` found no fault but could not verify everything, 130 after Ctrl-C, 1 for everything else.
"""

import errno
import os
import sys
from collections.abc import Callable
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import typer

from schemas.errors import EXIT_INTERRUPTED, ReadableError
from schemas.extras import missing_extra
from schemas.interpreters import isolate_children
from schemas.text import plain

EXIT_FAILED = 1

_DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class LazyCommand(NamedTuple):
    """Place of a command, and its line in `--help`, which does not import it."""

    place: str
    """Module and attribute."""
    help: str

    def load(self) -> Any:
        """A function with a command's options, or a `typer.Typer` with commands below it."""
        # Imported here, since `--help` does without.
        from streams.installation import install_policies

        install_policies()
        module, attribute = self.place.split(":")
        return getattr(import_module(module), attribute)


COMMANDS: MappingProxyType[str, LazyCommand] = MappingProxyType(
    {
        "up": LazyCommand(
            "infra.commands.up:up",
            "Run a whole deployment on this machine until Ctrl-C: broker, topics, worker, executors, clock.",
        ),
        "demo": LazyCommand(
            "infra.commands.demo:demo",
            "Run a demo: bids, a crash, a verified log; then a loan, a merge, and experts that move.",
        ),
        "submit": LazyCommand("infra.commands.asking:submit", "Submit jobs and wait for the decisions."),
        "withdraw": LazyCommand(
            "infra.commands.asking:withdraw", "Withdraw a job, and wait until it is over."
        ),
        "watch": LazyCommand(
            "infra.commands.watch:watch",
            "Watch jobs, nodes, runs and losses; `--json` streams every event and decision.",
        ),
        "explain": LazyCommand(
            "infra.commands.explain:explain",
            "Show the history of one job from the log: terms, decisions with reasons, runs, result.",
        ),
        "state": LazyCommand(
            "infra.commands.state:state",
            "Show the state of a cell: nodes, loans, zones with jobs, GPUs, queues, plans and prices.",
        ),
        "transfers": LazyCommand(
            "infra.commands.transfers:transfers",
            "Show which tasks help which: gains that were forecast, and those of merges.",
        ),
        "quote": LazyCommand(
            "infra.commands.asking:quote", "Ask what jobs would cost now, without submitting them."
        ),
        "vendor-quote": LazyCommand(
            "infra.commands.asking:vendor_quote",
            "Publish or withdraw standing quotes of labour vendors.",
        ),
        "replay": LazyCommand(
            "infra.commands.replay:replay",
            "Recompute every decision and compare it, byte by byte and link by link.",
        ),
        "simulate": LazyCommand(
            "infra.commands.simulate:simulate",
            "Run a cell on virtual time, with a generated workload or that of a recorded ledger.",
        ),
        "forecast": LazyCommand(
            "infra.commands.forecast:forecast",
            "Show what the zones of a ledger begin the next day with: prices that they found, or a forecast.",
        ),
        "nodes": LazyCommand(
            "infra.commands.nodes:app", "Register, lend, cordon and retire nodes of a running cell."
        ),
        "zone": LazyCommand("infra.commands.nodes:zone", "Change or add a zone of a running cell."),
        "topics": LazyCommand(
            "infra.commands.topics:app", "Create, list and check the topics and their access rights."
        ),
        "schemas": LazyCommand(
            "infra.commands.documents:app", "Print, write and check the schemas of all records."
        ),
        "worker": LazyCommand(
            "infra.commands.services:worker", "Run a worker; its settings are MILLRACE_* variables."
        ),
        "executor": LazyCommand(
            "infra.commands.services:executor",
            "Run an executor, set up for its node's zone; MILLRACE_* variables take precedence.",
        ),
        "solver": LazyCommand(
            "infra.commands.services:solver",
            "Run a solver for the long solves of policies; its other settings are MILLRACE_* variables.",
        ),
        "clock": LazyCommand(
            "infra.commands.services:clock", "Send the time to the cells of a file, until Ctrl-C."
        ),
        "lender": LazyCommand(
            "infra.commands.lender:lender",
            "Lend what a zone's load leaves idle; its settings are MILLRACE_LENDER_* variables.",
        ),
        "load": LazyCommand(
            "infra.commands.lender:load",
            "Report the load of a zone's inference servers, from Prometheus or a file.",
        ),
        "bench": LazyCommand("bench.cli:bench", "Measure Millrace on this machine."),
    }
)


def main(arguments: list[str] | None = None, loaded: Callable[[], None] = lambda: None) -> NoReturn:
    """Run a command and end the process with its status; see `run`."""
    isolate_children()
    sys.exit(run(arguments, loaded))


def run(arguments: list[str] | None = None, loaded: Callable[[], None] = lambda: None) -> int:
    """Run a command and return its status; `loaded` is called once the command is imported."""
    arguments = sys.argv[1:] if arguments is None else arguments
    name = next((argument for argument in arguments if not argument.startswith("-")), None)
    try:
        app = app_with(name)
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


def app_with(*names: str | None) -> typer.Typer:
    """Return the command line with these commands; the others have only their help.

    So a command does not wait for the imports of others.
    """
    app = typer.Typer(
        name="millrace",
        help="A market and a scheduler for fine-tuning on a GPU fleet, driven by events on Kafka.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, command in COMMANDS.items():
        if name not in names:
            app.command(name, help=command.help)(_absent)
            continue
        loaded = command.load()
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
