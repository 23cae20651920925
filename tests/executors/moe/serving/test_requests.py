"""Requests arrive, and are grouped into batches."""

from itertools import pairwise

import pytest

from executors.moe.serving.requests import Arrivals, BatchSchedule, Prompts, ServiceStep
from schemas.experts.workload import Requests
from schemas.lora import Dataset

DATASET = Dataset(path="p", samples=10)


def schedule(total: int | None = 10, first: int = 0, **fields: object) -> BatchSchedule:
    requests = Requests.model_validate({"dataset": DATASET} | fields)
    return BatchSchedule(requests, total, batch_size=4, first=first, begin_s=1_000.0)


def test_batches_without_rate_are_full_until_last() -> None:
    plan = schedule()
    assert [plan.step(done, 1_000.0) for done in (0, 4, 8, 10)] == [
        ServiceStep("serve", 4),
        ServiceStep("serve", 4),
        ServiceStep("serve", 2),
        ServiceStep("over"),
    ]
    assert plan.waited_s(range(4), 1_001.0) == []


def test_endless_service_runs_until_its_time() -> None:
    plan = schedule(total=None, until_s=1_050.0)
    assert plan.step(10**9, 1_049.0) == ServiceStep("serve", 4)
    assert plan.step(10**9, 1_050.0) == ServiceStep("over")


def test_arrived_requests_are_served_and_others_awaited() -> None:
    plan = schedule(rate_per_s=2.0, seed=1)
    arrivals = Arrivals(2.0, 1, 0)
    times_s = [1_000.0 + arrivals.time_s(request) for request in range(3)]
    waiting = plan.step(0, 1_000.0)
    assert waiting.word == "wait"
    assert waiting.wait_s == pytest.approx(times_s[0] - 1_000.0)
    assert plan.step(0, times_s[1]) == ServiceStep("serve", 2)
    assert plan.waited_s(range(2), times_s[1] + 1.0) == pytest.approx([times_s[1] - times_s[0] + 1.0, 1.0])
    assert plan.step(2, times_s[1]).wait_s == pytest.approx(times_s[2] - times_s[1])
    assert plan.step(2, times_s[1] + 1e6) == ServiceStep("serve", 4)


def test_a_wait_is_no_longer_than_the_service() -> None:
    assert schedule(rate_per_s=1e-3, until_s=1_003.0).step(0, 1_000.0) == ServiceStep("wait", wait_s=3.0)


def test_arrivals_are_poisson_by_seed() -> None:
    def gaps_s(seed: int) -> list[float]:
        arrivals = Arrivals(4.0, seed, 0)
        times_s = [0.0, *(arrivals.time_s(request) for request in range(20_000))]
        return [later - earlier for earlier, later in pairwise(times_s)]

    gaps = gaps_s(1)
    assert gaps == gaps_s(1) != gaps_s(2)
    mean_s = sum(gaps) / len(gaps)
    assert mean_s == pytest.approx(0.25, rel=0.03)
    # Exponential: the standard deviation is the mean.
    assert sum((gap - mean_s) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean_s**2, rel=0.06)


def test_resumed_service_keeps_its_gaps() -> None:
    whole, rest = Arrivals(4.0, 3, 0), Arrivals(4.0, 3, 100)
    assert whole.time_s(150) - whole.time_s(99) == pytest.approx(rest.time_s(150))
    rest.forget(120)
    assert whole.time_s(2_500) - whole.time_s(99) == pytest.approx(rest.time_s(2_500))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({}, "expected .*; the fields are: none"),
        ({"prompt": ""}, "prompt: is empty"),
        ({"prompt": 3}, "prompt: is a number, expected a string"),
        ({"text": None}, "text: is null, expected a string"),
        ({"text": "\ud83d"}, "text: has half of a surrogate pair"),
        ([], "is an array, expected a JSON object"),
        ("a", "is a string, expected a JSON object"),
    ],
)
def test_lines_without_a_prompt_are_refused(line: object, problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{problem}"):
        Prompts().parse(line)


def test_prompt_or_text_of_line_is_read() -> None:
    lines = [{"prompt": "a", "completion": "b"}, {"text": "a"}, {"text": "a", "label": 1}]
    assert {Prompts().parse(line).text for line in lines} == {"a"}
