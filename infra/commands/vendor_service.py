"""`millrace vendor`: the service of a labour vendor, in the foreground."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from executors.lora.record_fields import MAX_RECORD_BYTES
from infra.commands.options import (
    DEFAULT_PREFIX,
    BootstrapServers,
    CellName,
    TopicPrefix,
    bounded,
    settings_faults,
    target_of,
)
from infra.deployment.deployment_folders import Folders, default_data_dir
from infra.errors import CommandError
from infra.event_files import read_vendor_quotes
from infra.vendor.preparation import LengthLimits, Preparation
from infra.vendor.service import VendorService
from schemas.auction.bids import VendorQuoted
from schemas.service_base import ServiceSettings, begin_service, stopped_by_signals

_DAY_S = 86_400.0


def vendor(
    file: Annotated[
        str,
        typer.Argument(
            help="One standing quote, as for `vendor-quote`; `-` is standard input.", metavar="FILE"
        ),
    ],
    datasets: Annotated[
        Path | None,
        typer.Option(
            envvar="MILLRACE_DATASET_ROOT",
            help="The executors' dataset root; by default that of the deployment that `millrace up` started.",
            show_default=False,
        ),
    ] = None,
    least_characters: Annotated[
        int, bounded(least=0, most=MAX_RECORD_BYTES, help="Shorter records are dropped.")
    ] = 1,
    most_characters: Annotated[
        int, bounded(least=1, most=MAX_RECORD_BYTES, help="Longer records are dropped.")
    ] = MAX_RECORD_BYTES,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a tokenizer: count the tokens of each record, in FILE.tokens.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    history_days: Annotated[
        float, bounded(least=0, most=365, help="Age in days of the oldest orders that are read at the start.")
    ] = 7.0,
    cell: CellName = None,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
) -> None:
    """Serve as a labour vendor: quote, prepare the data that are ordered, and deliver."""
    quotes = [quote for quote in read_vendor_quotes(file, cell) if isinstance(quote, VendorQuoted)]
    if len(quotes) != 1:
        raise CommandError(f"{file}: has {len(quotes)} quotes, expected one, of the vendor to serve as")
    root = datasets or Folders(default_data_dir().absolute()).datasets
    if not root.is_dir():
        raise CommandError(f"--datasets {root}: is no folder")
    count_tokens = None if tokenizer is None else _counter(tokenizer)
    target = target_of(bootstrap_servers, topic_prefix, "vendors")
    with settings_faults():
        settings = ServiceSettings(**target.kafka.as_fields(), topic_prefix=target.prefix)
    begin_service(settings)
    with stopped_by_signals() as stop:
        limits = LengthLimits(least_characters, most_characters)
        preparation = Preparation(root, limits, count_tokens, stop.is_set)
        VendorService(target, quotes[0], preparation, history_days * _DAY_S, stop).serve()


def _counter(folder: Path) -> Callable[[str], int]:
    """Return a function that counts the tokens of a text, without special ones.

    Raises:
        CommandError: the folder has no tokenizer.
    """
    # Imported here, since most vendors count no tokens.
    from executors.lora.base_model import read_tokenizer
    from executors.lora.model_kind import BaseModelError

    try:
        loaded = read_tokenizer(folder)
    except BaseModelError as error:
        raise CommandError(f"--tokenizer {error}") from error
    return lambda text: len(loaded.encode(text, add_special_tokens=False))
