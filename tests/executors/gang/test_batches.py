"""Samples of a step do not depend on the ranks that train them."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from executors.gang.batches import IGNORED, global_batch, pad, share
from executors.lora.batch import TextSequence

sizes = st.integers(1, 40)


@given(records=sizes, batch=sizes, work=st.integers(1, 200), seed=st.integers(0, 2**31 - 1))
def test_batches_visit_each_record_once_in_an_epoch(records: int, batch: int, work: int, seed: int) -> None:
    samples: list[int] = []
    while len(samples) < work:
        samples += global_batch(records, seed, len(samples), batch, work)
    assert len(samples) == work
    for start in range(0, work, records):
        epoch = samples[start : start + records]
        assert len(set(epoch)) == len(epoch)


@given(count=st.integers(0, 100), world=st.integers(1, 120))
def test_shares_are_neighbours_of_nearly_equal_size(count: int, world: int) -> None:
    shares = [share(count, rank, world) for rank in range(world)]
    assert [place for each in shares for place in each] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_loss_is_on_completions_only() -> None:
    batch = pad([TextSequence([1, 2, 3], 1), TextSequence([4, 5, 6, 7], 3)], torch.device("cpu"))
    assert batch.input_ids.tolist() == [[1, 2, 3, 0], [4, 5, 6, 7]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert batch.labels.tolist() == [[IGNORED, 2, 3, IGNORED], [IGNORED, IGNORED, IGNORED, 7]]
