"""Events that are sent for an answer: how `submit`, `quote` and `vendor-quote` wait for it."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from infra.errors import CommandError
from infra.log.answers import Answers, Refusal
from infra.log.publisher import EventPublisher
from infra.log.target import Target
from schemas.codec import Decision
from schemas.jobs import JobQuoteRequested, JobSubmitted
from schemas.quotes import VendorLeft, VendorQuoted

Asked = TypeVar("Asked", JobSubmitted, JobQuoteRequested, VendorQuoted | VendorLeft)


def ask(
    target: Target,
    topic: str,
    source: str,
    events: Iterable[Asked],
    name_of: Callable[[Asked], str],
    timeout_s: float,
) -> Iterator[tuple[Asked, Decision]]:
    """Send events and return each with the decision about it, as these come.

    Args:
        topic: the input topic that the events go to, without the prefix.
        source: the CloudEvents source of the events.
        name_of: what errors call an event.
        timeout_s: how long to wait for the next answer.

    Raises:
        CommandError: one is refused, or the answers do not come.
        PublishError: the broker does not take an event.
        ReadError: the log cannot be read.
    """
    with Answers(target, topic) as answers:
        with EventPublisher(target, source) as publisher:
            waiting = {publisher.publish(event).id: event for event in events}
        for event_id, answer in answers.to(dict(waiting), timeout_s):
            event = waiting.pop(event_id)
            if isinstance(answer, Refusal):
                raise CommandError(f"{name_of(event)}: refused: {answer.reason}")
            yield event, answer
    if waiting:
        first = name_of(next(iter(waiting.values())))
        raise CommandError(
            f"no answer about {first} ({len(waiting)} in all) within {timeout_s:g} s: does a worker run?"
        )
