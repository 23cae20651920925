"""`millrace explain`."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Annotated, Literal

import typer

from infra.commands.log_files import read_log_files
from infra.commands.options import (
    DEFAULT_PREFIX,
    BootstrapServers,
    CellName,
    Json,
    LedgerFile,
    TopicPrefix,
    bounded,
    target_of,
)
from infra.commands.output import print_json, print_line
from infra.errors import CommandError
from infra.log.reader import LogReader
from infra.log.target import Target
from infra.progress import bar
from infra.text import written
from infra.views.story import Chapter, Story
from infra.views.words import describe
from schemas.base import ZoneView
from schemas.cells import CellConfigured
from schemas.codec import Decision, InvalidRecordError, decode_decision, decode_event
from schemas.topics import DECISIONS, LEDGER, decision_views
from streams.cell.ledger_event import LedgerEvent

_DAY_S = 86_400.0


def explain(
    job_id: Annotated[str, typer.Argument(help="The job's id.", metavar="JOB")],
    cell: CellName = None,
    ledger: LedgerFile = None,
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
    if ledger is not None and days is not None:
        raise CommandError("--days reads Kafka and does not go with --from")
    with bar("reading the log") as done:
        if ledger is not None:
            records = read_log_files(ledger)
        else:
            start: Literal["beginning"] | float = "beginning" if days is None else time.time() - days * _DAY_S
            target = target_of(bootstrap_servers, topic_prefix, "auditor")
            records = _of_kafka(target, job_id.encode(), start, done)
        stories = _stories(records, job_id)
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
    print_line(f"Job {story.job_id} in cell {cell}: {story.state}")
    for chapter in story.chapters:
        for line in _lines(chapter, story.policy):
            print_line(line)
    if story.state == "admitted" and (figures := story.figures):
        print_line(f"{'latest figures':>26}  {', '.join(' '.join(figure) for figure in figures.items())}")


def _stories(records: Iterator[LedgerEvent | Decision], job_id: str) -> dict[str, Story]:
    """Return the stories of the job in these records, by cell."""
    stories: dict[str, Story] = {}
    for record in records:
        cell = record.cell if isinstance(record, Decision) else record.envelope.event.cell
        story = stories.setdefault(cell, Story(job_id))
        if isinstance(record, LedgerEvent):
            story.fold_event(record.offset, record.envelope)
            continue
        with suppress(InvalidRecordError):  # replay reports it
            story.fold_decision(record)
    return {cell: story for cell, story in stories.items() if story.chapters}


def _of_kafka(
    target: Target,
    mention: bytes,
    start: Literal["beginning"] | float,
    on_progress: Callable[[float], None],
) -> Iterator[LedgerEvent | Decision]:
    """Yield the records from `start` on that mention a job."""
    ledger = target.topic(LEDGER)
    # The state of a zone may concern a job that it does not name any more.
    mentions = mention, *(view.TYPE.encode() for view in decision_views() if issubclass(view, ZoneView))
    with LogReader(target, [ledger, target.topic(DECISIONS)], start) as reader:
        for record in reader.to_end(on_progress):
            is_configuration = ("ce_type", CellConfigured.TYPE.encode()) in record.headers
            if record.value is None:
                continue
            if not is_configuration and not any(part in record.value for part in mentions):
                continue
            try:
                if record.topic == ledger:
                    yield LedgerEvent(record.offset, decode_event(record.value, record.headers))
                else:
                    yield decode_decision(record.value)
            except InvalidRecordError:
                continue  # replay reports it


def _lines(chapter: Chapter, policy: str | None) -> Iterator[str]:
    when = "before the first tick" if chapter.time in (None, "") else written(chapter.time)
    head, *details = describe(chapter.record, policy)
    if chapter.note is not None:
        details.append(chapter.note)
    yield f"{when:>26}  {head}"
    for detail in details:
        yield f"{'':>26}    {detail}"
