"""`millrace lender` and `millrace load`: services of the inference side of a cell, in the foreground."""

import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from infra.commands.options import (
    DEFAULT_PREFIX,
    BootstrapServers,
    Json,
    TopicPrefix,
    bounded,
    settings_faults,
    target_of,
)
from infra.commands.output import print_json, remark, show
from infra.errors import CommandError
from infra.lender.lending_zones import PresenceReader, lending_zone
from infra.lender.prometheus import MeasuredLoad, Prometheus
from infra.lender.reporting import LoadReporter
from infra.workloads.elastic.loads import read_load_samples
from schemas.inference import InferenceLoadReported
from schemas.service_base import begin_service, stopped_by_signals

Cell = Annotated[str, typer.Option(help="The zone's cell.", show_default=False)]
Zone = Annotated[str, typer.Option(help="The zone that lends, one with `lending`.", show_default=False)]


def lender(
    cell: Cell,
    zone: Zone,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Lend the servers that a zone's load leaves idle. Settings are the variables MILLRACE_LENDER_*."""
    from infra.lender.service import LenderService, LenderSettings

    target = target_of(bootstrap_servers, topic_prefix, "inference")
    with settings_faults():
        settings = LenderSettings(**target.kafka.as_fields(), topic_prefix=target.prefix)
    begin_service(settings)
    report = print_json if json else lambda _line: None
    with stopped_by_signals() as stop:
        LenderService(target, settings, cell, zone, report, stop).serve()


def load(
    cell: Cell,
    zone: Zone,
    prometheus: Annotated[
        str | None,
        typer.Option(help="A Prometheus server to ask, such as http://127.0.0.1:9090.", metavar="URL"),
    ] = None,
    query: Annotated[
        str | None, typer.Option(help="A query whose one value is the load, from 0 to 1.", metavar="QUERY")
    ] = None,
    per_server: Annotated[
        str | None,
        typer.Option(
            help="The query's series are per server, which this label names; those above 0 are busy.",
            metavar="LABEL",
        ),
    ] = None,
    start_s: Annotated[
        float,
        bounded(
            least=0,
            most=86_400,
            help="Seconds that a server may take from its return to its first series; see --per-server.",
        ),
    ] = 900.0,
    every_s: Annotated[
        float, bounded(least=0.1, most=86_400, help="Seconds from one query to the next.")
    ] = 60.0,
    file: Annotated[
        Path | None,
        typer.Option(help="CSV of loads to publish instead, with columns time_s and load.", metavar="FILE"),
    ] = None,
    pace: Annotated[
        float, bounded(least=0.001, most=1_000_000, help="Seconds of the file that pass in one.")
    ] = 1.0,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Report the load of a zone's inference servers, from Prometheus or a file."""
    if (file is None) == (prometheus is None):
        raise CommandError("give either --prometheus and --query, or --file")
    if (query is None) != (prometheus is None):
        raise CommandError("--prometheus and --query go together")
    if per_server is not None and file is not None:
        raise CommandError("--per-server goes with --prometheus")
    loads = None if file is None else read_load_samples(file)
    server = None if prometheus is None else Prometheus(prometheus)
    target = target_of(bootstrap_servers, topic_prefix, "inference")

    def published(event: InferenceLoadReported) -> None:
        show(json, event.model_dump(mode="json"), f"load {event.load:.4f} at {event.time_s:.3f}")

    with stopped_by_signals() as stop:
        found = lending_zone(target, cell, zone, stop)
        if found is None:
            return
        reporter = LoadReporter(target, cell, zone, remark)
        if loads is not None:
            reporter.replay(loads, pace, stop, published)
        elif server is None or query is None:
            raise AssertionError("the options are checked above")
        elif per_server is None:
            reporter.measure(partial(server.load, query), every_s, stop, published)
        else:
            with closing(PresenceReader(target, found, start_s, stop)) as servers:
                measure = partial(_load_by_server, server, query, per_server, servers)
                reporter.measure(measure, every_s, stop, published)


def _load_by_server(server: Prometheus, query: str, label: str, servers: PresenceReader) -> MeasuredLoad:
    presence = servers.present()
    return server.load_by_server(query, label, presence.owned, presence.expected(time.time()))
