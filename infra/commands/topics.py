"""`millrace topics`."""

from dataclasses import asdict

import typer

from infra.commands.options import (
    DEFAULT_PREFIX,
    BootstrapServers,
    CommandPartitions,
    Json,
    Partitions,
    TopicPrefix,
    target_of,
)

app = typer.Typer(help="Create, list and check the topics.", no_args_is_help=True)


@app.command()
def create(
    partitions: Partitions = 4,
    command_partitions: CommandPartitions = 16,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
) -> None:
    """Create the topics that are missing; none that exists is ever changed."""
    from infra.topics import ensure_topics
    from schemas.topics import topics

    target = target_of(bootstrap_servers, topic_prefix)
    specs = topics(topic_prefix, partitions, command_partitions)
    ensure_topics(target.bootstrap_servers, specs)
    typer.echo(f"{len(specs)} topics are there as specified")


@app.command("list")
def list_topics(
    bootstrap_servers: BootstrapServers = None, topic_prefix: TopicPrefix = DEFAULT_PREFIX, json: Json = False
) -> None:
    """List the topics as the broker has them."""
    from rich.table import Table

    from infra.commands.output import console, print_json
    from infra.topics import describe_topics

    rows = describe_topics(target_of(bootstrap_servers, topic_prefix).bootstrap_servers, topic_prefix)
    if json:
        print_json([asdict(row) for row in rows])
        return
    table = Table("topic", "partitions", "records", "cleanup", "retention", "largest message")
    for row in rows:
        retention = "for ever" if row.retention_ms < 0 else f"{row.retention_ms / 86_400_000:g} days"
        table.add_row(
            row.name,
            str(row.partitions),
            str(row.records),
            row.cleanup_policy,
            retention,
            f"{row.max_message_bytes / 2**20:g} MiB",
        )
    console().print(table)


@app.command()
def check(
    partitions: Partitions = 4,
    command_partitions: CommandPartitions = 16,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
) -> None:
    """Check that every topic exists and is as specified; nothing is created."""
    from infra.errors import CommandError
    from infra.topics import describe_topics, ensure_topics
    from schemas.topics import topics

    target = target_of(bootstrap_servers, topic_prefix)
    specs = topics(topic_prefix, partitions, command_partitions)
    present = {row.name for row in describe_topics(target.bootstrap_servers, topic_prefix)}
    missing = [spec.name for spec in specs if spec.name not in present]
    if missing:
        raise CommandError(f"topics are missing: {', '.join(missing)}: `millrace topics create` makes them")
    # With none missing this only compares.
    ensure_topics(target.bootstrap_servers, specs)
    typer.echo(f"{len(specs)} topics are as specified")
