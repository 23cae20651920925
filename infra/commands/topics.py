"""`millrace topics`."""

from dataclasses import asdict
from itertools import groupby
from typing import Annotated

import typer
from rich.table import Table

from infra.commands.options import (
    DEFAULT_PREFIX,
    BootstrapServers,
    CommandPartitions,
    Json,
    Partitions,
    TopicPrefix,
    target_of,
)
from infra.commands.output import console, print_json, remark
from infra.errors import CommandError
from infra.topics import Grant, apply_grants, describe_topics, ensure_topics, grants
from schemas.kind import ROLES, Role
from schemas.topics import topics

app = typer.Typer(help="Create, list and check the topics and their access rights.", no_args_is_help=True)


@app.command()
def create(
    partitions: Partitions = 4,
    command_partitions: CommandPartitions = 16,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
) -> None:
    """Create the topics that are missing; none that exists is ever changed."""
    target = target_of(bootstrap_servers, topic_prefix, "operators")
    specs = topics(topic_prefix, partitions, command_partitions)
    ensure_topics(target.kafka, specs)
    typer.echo(f"{len(specs)} topics are there as specified")


@app.command("list")
def list_topics(
    bootstrap_servers: BootstrapServers = None, topic_prefix: TopicPrefix = DEFAULT_PREFIX, json: Json = False
) -> None:
    """List the topics of the broker."""
    rows = describe_topics(target_of(bootstrap_servers, topic_prefix, "auditor").kafka, topic_prefix)
    if json:
        print_json([asdict(row) for row in rows])
        return
    table = Table("topic", "partitions", "records", "cleanup", "retention", "largest message")
    for row in rows:
        retention = "forever" if row.retention_ms < 0 else f"{row.retention_ms / 86_400_000:g} days"
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
    target = target_of(bootstrap_servers, topic_prefix, "auditor")
    specs = topics(topic_prefix, partitions, command_partitions)
    present = {row.name for row in describe_topics(target.kafka, topic_prefix)}
    missing = [spec.name for spec in specs if spec.name not in present]
    if missing:
        raise CommandError(f"topics are missing: {', '.join(missing)}: `millrace topics create` creates them")
    # As no topic is missing, this only compares.
    ensure_topics(target.kafka, specs)
    typer.echo(f"{len(specs)} topics are as specified")


@app.command()
def acls(
    apply: Annotated[
        bool, typer.Option("--apply", help="Set these rights on the cluster; none is revoked.")
    ] = False,
    principal: Annotated[
        list[str] | None,
        typer.Option(
            help="The principal of a role, if it is not User:<role>; may be repeated.",
            metavar="ROLE=PRINCIPAL",
            show_default=False,
        ),
    ] = None,
    worker_group: Annotated[
        str, typer.Option(envvar="MILLRACE_WORKER_GROUP", help="The workers' consumer group.")
    ] = "cells",
    solver_group: Annotated[
        str, typer.Option(envvar="MILLRACE_SOLVER_GROUP", help="The solvers' consumer group.")
    ] = "solvers",
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Print what each role may do with each topic and consumer group, and apply it."""
    groups: dict[Role, str] = {"worker": worker_group, "solver": solver_group}
    required = grants(topic_prefix, _principals(principal or []), groups)
    remarks: list[str] = []
    if apply:
        kafka = target_of(bootstrap_servers, topic_prefix, "admin").kafka
        others = apply_grants(kafka, required)
        remarks += [f"{len(required)} rights are given at {kafka.bootstrap_servers}"]
        remarks += [f"also there: {line}" for line in others]
    if json:
        print_json([asdict(grant) for grant in required])
    else:
        _print_grants(required)
    for line in remarks:
        remark(line)


def _principals(given: list[str]) -> dict[Role, str]:
    found: dict[Role, str] = {}
    for entry in given:
        name, _, principal = entry.partition("=")
        role = next((role for role in ROLES if role == name), None)
        if role is None:
            raise CommandError(f"--principal {entry}: there is no role {name}, there are {', '.join(ROLES)}")
        if not principal.startswith("User:") or principal == "User:":
            raise CommandError(f"--principal {entry}: expected {role}=User:<name>")
        found[role] = principal
    return found


def _print_grants(required: list[Grant]) -> None:
    table = Table("role", "principal", "resource", "name", "operations")
    for key, rights in groupby(
        required, lambda grant: (grant.role, grant.principal, grant.resource, grant.name)
    ):
        table.add_row(*key, ", ".join(right.operation.lower() for right in rights))
    console().print(table)
