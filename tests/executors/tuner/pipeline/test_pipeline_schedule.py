"""In which order stages run micro-batches."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from executors.tuner.pipeline.partition import Action, one_forward_one_backward, split
from tests.support.examples import examples

SHAPES = {"stages": st.integers(1, 8), "micro_batches": st.integers(1, 12)}


@settings(max_examples=examples(300), deadline=None)
@given(**SHAPES)
def test_schedule_ends_as_fast_as_gpipe(stages: int, micro_batches: int) -> None:
    """Stages are processes that run their next action as soon as its input is there. Each action takes 1."""
    left = [list(one_forward_one_backward(s, stages, micro_batches)) for s in range(stages)]
    done: set[tuple[int, Action]] = set()
    ticks = 0
    while any(left):
        ran = []
        for stage, actions in enumerate(left):
            if not actions:
                continue
            source = stage - 1 if actions[0].kind == "forward" else stage + 1
            needs_nothing = not 0 <= source < stages
            if needs_nothing or (source, actions[0]) in done:
                ran.append((stage, actions.pop(0)))
        assert ran, "a deadlock"
        done.update(ran)
        ticks += 1
    assert ticks == 2 * (micro_batches + stages - 1)


@settings(max_examples=examples(300), deadline=None)
@given(**SHAPES)
def test_few_micro_batches_are_kept_at_once(stages: int, micro_batches: int) -> None:
    for stage in range(stages):
        kept, most = 0, 0
        actions = list(one_forward_one_backward(stage, stages, micro_batches))
        for kind in ("forward", "backward"):
            assert [a.micro_batch for a in actions if a.kind == kind] == list(range(micro_batches))
        for action in actions:
            kept += 1 if action.kind == "forward" else -1
            assert kept >= 0
            most = max(most, kept)
        assert most == min(stages - stage, micro_batches)


@settings(max_examples=examples(300), deadline=None)
@given(count=st.integers(1, 40), micro_batches=st.integers(1, 12))
def test_batch_is_cut_evenly_without_empty_part(count: int, micro_batches: int) -> None:
    parts = split(range(count), micro_batches)
    assert [number for part in parts for number in part] == list(range(count))
    assert len(parts) == min(count, micro_batches)
    sizes = Counter(len(part) for part in parts)
    assert max(sizes) - min(sizes) <= 1
