"""`millrace explain`."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from infra.commands.log_files import read_log_files
from infra.commands.options import (
    DEFAULT_PREFIX,
    BootstrapServers,
    CellName,
    Json,
    TopicPrefix,
    bounded,
    target_of,
)
from infra.commands.output import print_json, progress, say
from infra.errors import CommandError
from infra.log.reader import LogReader
from infra.log.target import Target
from infra.views.story import Chapter, Story
from infra.views.text import written
from infra.views.words import describe
from schemas.base import ZoneView
from schemas.codec import Decision, InvalidRecordError, decode_decision, decode_event
from schemas.topics import DECISION_VIEWS, DECISIONS, LEDGER

_DAY_S = 86_400.0
_STANDING = tuple(model.TYPE.encode() for model in DECISION_VIEWS if issubclass(model, ZoneView))
"""How a zone stands may be news of a job that it does not speak of any more."""


def explain(
    job_id: Annotated[str, typer.Argument(help="The job's id.", metavar="JOB")],
    cell: CellName = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="A ledger file instead of Kafka, with decisions.jsonl beside it.",
            metavar="LEDGER.jsonl",
            show_default=False,
        ),
    ] = None,
    days: Annotated[
        float | None,
        bounded(
            least=0.0, most=36_500, help="Read so many days of the log; by default all.", show_default=False
        ),
    ] = None,
    bootstrap_servers: BootstrapServers = None,
    topic_prefix: TopicPrefix = DEFAULT_PREFIX,
    json: Json = False,
) -> None:
    """Show the history of one job from the log: terms, decisions with reasons, runs, result."""
    if ledger is not None:
        if days is not None:
            raise CommandError("--days reads Kafka and does not go with --from")
        stories = _stories_in_files(ledger, job_id)
    else:
        start: Literal["beginning"] | float = "beginning" if days is None else time.time() - days * _DAY_S
        stories = _stories(target_of(bootstrap_servers, topic_prefix, "auditor"), job_id, start)
    if cell is not None:
        stories = {name: story for name, story in stories.items() if name == cell}
    if not stories:
        since = "" if days is None else f" in the last {days:g} days"
        raise CommandError(f"the log has no job {job_id}" + (f" in cell {cell}" if cell else "") + since)
    if len(stories) > 1:
        raise CommandError(f"job {job_id} is in cells {', '.join(sorted(stories))}: choose with --cell")
    ((cell_name, story),) = stories.items()
    show(cell_name, story, json)


def show(cell: str, story: Story, json: bool) -> None:
    """Print a job's story."""
    if json:
        print_json({"cell": cell, **story.as_json()})
        return
    say(f"Job {story.job_id} in cell {cell}: {story.state}")
    for chapter in story.chapters:
        for line in _lines(chapter):
            say(line)


def _stories(target: Target, job_id: str, start: Literal["beginning"] | float) -> dict[str, Story]:
    """By cell, what its log says about the job from then on."""
    ledger = target.topic(LEDGER)
    mention = job_id.encode()
    stories: dict[str, Story] = {}
    with (
        LogReader(target, [ledger, target.topic(DECISIONS)], start) as reader,
        progress("reading the log") as done,
    ):
        for record in reader.to_end(done):
            if record.value is None or not any(part in record.value for part in (mention, *_STANDING)):
                continue
            cell = (record.key or b"").decode(errors="replace")
            story = stories.setdefault(cell, Story(job_id))
            try:
                if record.topic == ledger:
                    story.take_event(record.offset, decode_event(record.value, record.headers))
                else:
                    story.take_decision(decode_decision(record.value))
            except InvalidRecordError:
                continue  # replay is who says so
    return {cell: story for cell, story in stories.items() if story.chapters}


def _stories_in_files(ledger: Path, job_id: str) -> dict[str, Story]:
    """The same from a ledger file and the decisions beside it."""
    stories: dict[str, Story] = {}
    for entry in read_log_files(ledger):
        cell = entry.cell if isinstance(entry, Decision) else entry.envelope.event.cell
        story = stories.setdefault(cell, Story(job_id))
        if isinstance(entry, Decision):
            story.take_decision(entry)
        else:
            story.take_event(entry.offset, entry.envelope)
    return {cell: story for cell, story in stories.items() if story.chapters}


def _lines(chapter: Chapter) -> Iterator[str]:
    when = "before the first tick" if chapter.time in (None, "") else written(chapter.time)
    head, *details = describe(chapter.record)
    yield f"{when:>26}  {head}"
    for detail in details:
        yield f"{'':>26}    {detail}"
