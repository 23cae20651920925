"""`millrace vendor-quote`."""

from typing import TYPE_CHECKING, Annotated

import typer

from infra.commands.options import DEFAULT_PREFIX, BootstrapServers, CellName, Json, Timeout, TopicPrefix

if TYPE_CHECKING:
    from schemas.quotes import VendorLeft, VendorQuoted

_SOURCE = "millrace/vendor-quote"


def vendor_quote(
    file: Annotated[
        str,
        typer.Argument(help="Standing quotes, as YAML or JSON lines; `-` is standard input.", metavar="FILE"),
    ],
    cell: CellName = None,
    timeout_s: Timeout = 30.0,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Publish standing quotes of labour vendors, or take them back."""
    from infra.commands.asking import ask
    from infra.commands.options import target_of
    from infra.commands.output import print_json, say
    from infra.errors import CommandError
    from infra.vendor_quotes_file import read_vendor_quotes
    from schemas.decisions import EventIgnored
    from schemas.topics import QUOTES

    quotes = read_vendor_quotes(file, cell)
    target = target_of(bootstrap_servers, topic_prefix, "vendors")
    for quote, decision in ask(target, QUOTES, _SOURCE, quotes, _name, timeout_s):
        if isinstance(decision.outcome, EventIgnored):
            raise CommandError(decision.outcome.detail)
        if json:
            print_json({"type": quote.TYPE, **quote.model_dump(mode="json")})
        else:
            say(f"{_name(quote)}: {_text(quote)}")


def _name(quote: "VendorQuoted | VendorLeft") -> str:
    return f"{quote.vendor} in cell {quote.cell}"


def _text(quote: "VendorQuoted | VendorLeft") -> str:
    from infra.money import units
    from schemas.quotes import VendorLeft

    if isinstance(quote, VendorLeft):
        return "takes its quote back"
    return (
        f"asks {units(quote.fixed_price_micros)} and {units(quote.price_per_thousand_samples_micros)} per "
        f"thousand samples, and takes {quote.fixed_delay_s:g} s and {quote.delay_per_thousand_samples_s:g} s "
        "per thousand"
    )
