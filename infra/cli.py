"""The command line: `millrace`. Every command lives in a module of `infra.commands`.

Whatever goes wrong is one line on standard error and a status that is not 0: 2 for a command line that
cannot be understood, 1 for everything else, 130 after Ctrl-C.
"""

import os
import sys
from typing import NoReturn

import typer

from infra.commands import (
    demo,
    documents,
    explain,
    forecast,
    quote,
    replay,
    services,
    simulate,
    submit,
    topics,
    up,
    vendor_quote,
    watch,
)
from infra.commands.faults import fault_line
from infra.commands.plugins import add_plugins
from schemas.text import plain

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="millrace",
    help="A market and a scheduler for fine-tuning fleets, driven by events on Kafka.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(up.up)
app.command()(demo.demo)
app.command()(submit.submit)
app.command()(watch.watch)
app.command()(explain.explain)
app.command()(quote.quote)
app.command()(vendor_quote.vendor_quote)
app.command()(replay.replay)
app.command()(simulate.simulate)
app.command()(forecast.forecast)
app.add_typer(topics.app, name="topics")
app.add_typer(documents.app, name="schemas")
app.command()(services.worker)
app.command()(services.executor)
app.command()(services.solver)
app.command()(services.clock)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command and end the process with its status."""
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run a command and return its status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    add_plugins(app, arguments)
    try:
        return app(args=arguments, prog_name="millrace", standalone_mode=False) or 0
    except typer.TyperException as error:
        if error.format_message():  # without any arguments, the help has been shown instead
            _say(error.format_message())
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever reads our output has seen enough. Nothing more may be written, not at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except Exception as error:
        line = fault_line(error)
        if line is None:
            raise
        _say(line)
        return EXIT_FAILED


def _say(line: str) -> None:
    sys.stderr.write(f"millrace: {plain(line)}\n")


if __name__ == "__main__":
    main()
