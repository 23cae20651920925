"""Experts that come from the host's memory compute what they would on the device, one at a time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from executors.moe.parallel.offloading import OffloadedExperts, place, put_together, split_like
from tests.support.parallel_experts import CPU, SmallExperts

HIDDEN = 6
EXPERT_BYTES = 2 * HIDDEN * 2 * HIDDEN * 8


def gradients(experts: torch.nn.Module) -> list[Tensor]:
    return [torch.zeros_like(each) if each.grad is None else each.grad for each in experts.parameters()]


def offloaded(resident: int, experts: int) -> OffloadedExperts:
    here = SmallExperts(range(resident), HIDDEN, seed=1) if resident else None
    coming = [SmallExperts(range(each, each + 1), HIDDEN, seed=1) for each in range(resident, experts)]
    return OffloadedExperts(here, coming)


@pytest.mark.parametrize("resident", [0, 1, 3])
@pytest.mark.parametrize("counts", [[4, 0, 3, 5], [0, 0, 0, 0], [0, 7, 0, 0], [0, 0, 2, 6]])
def test_offloaded_outputs_and_gradients_are_unchanged(resident: int, counts: list[int]) -> None:
    whole, experts = SmallExperts(range(4), HIDDEN, seed=1), offloaded(resident, 4)
    rows = torch.randn(sum(counts), HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    mine, theirs = rows.clone().requires_grad_(), rows.clone().requires_grad_()
    outputs, expected = experts(mine, torch.tensor(counts)), whole(theirs, torch.tensor(counts))
    torch.testing.assert_close(outputs, expected, rtol=0, atol=0)
    outputs.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=1e-14)
    modules = [*([experts.resident] if experts.resident else []), *experts.offloaded]
    parts = [gradients(part) for part in modules]
    for got, whole_gradient in zip(zip(*parts, strict=True), gradients(whole), strict=True):
        torch.testing.assert_close(torch.cat(got), whole_gradient, rtol=0, atol=1e-14)
    assert experts.peak_bytes == (EXPERT_BYTES if any(counts[resident:]) else 0)


def test_counts_of_fewer_experts_are_refused() -> None:
    with pytest.raises(ValueError, match="counts of 2 experts; 3 are offloaded"):
        offloaded(0, 3)(torch.zeros(0, HIDDEN, dtype=torch.float64), torch.tensor([0, 0]))


@given(experts=st.integers(1, 6), resident=st.integers(0, 6))
def test_pieces_are_residents_and_single_experts(experts: int, resident: int) -> None:
    resident = min(resident, experts)
    stacked = torch.arange(experts * 6.0).view(experts, 2, 3)
    pieces = place(stacked, resident, CPU)
    assert [len(piece) for piece in pieces] == [
        *([resident] if resident else []),
        *[1] * (experts - resident),
    ]
    assert torch.equal(put_together(pieces), stacked)
    assert all(map(torch.equal, split_like(stacked, pieces), pieces))
    if resident < experts:  # so that the whole can be freed
        assert all(each.untyped_storage().nbytes() == each.nbytes for each in pieces)
