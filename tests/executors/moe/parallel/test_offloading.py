"""Experts that come from the host's memory compute what they would on the device, within a budget."""

import pytest
import torch
from torch import Tensor

from executors.moe.parallel.offloading import OffloadedExperts
from tests.support.parallel_experts import SmallExperts

HIDDEN = 6
EXPERT_BYTES = 2 * HIDDEN * 2 * HIDDEN * 8


def gradients(experts: torch.nn.Module) -> list[Tensor]:
    return [torch.zeros_like(each) if each.grad is None else each.grad for each in experts.parameters()]


@pytest.mark.parametrize("resident", [0, 1, 3])
@pytest.mark.parametrize("counts", [[4, 0, 3, 5], [0, 0, 0, 0], [0, 7, 0, 0]])
def test_outputs_and_gradients_are_those_of_experts_on_the_device(resident: int, counts: list[int]) -> None:
    whole = SmallExperts(range(4), HIDDEN, seed=1)
    here = SmallExperts(range(resident), HIDDEN, seed=1) if resident else None
    coming = SmallExperts(range(resident, 4), HIDDEN, seed=1)
    budget_bytes = (resident + 1) * EXPERT_BYTES
    experts = OffloadedExperts(here, coming, budget_bytes)
    rows = torch.randn(sum(counts), HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    mine, theirs = rows.clone().requires_grad_(), rows.clone().requires_grad_()
    outputs, expected = experts(mine, torch.tensor(counts)), whole(theirs, torch.tensor(counts))
    torch.testing.assert_close(outputs, expected, rtol=0, atol=0)
    outputs.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=1e-14)
    parts = [gradients(part) for part in (here, coming) if part is not None]
    for got, whole_gradient in zip(zip(*parts, strict=True), gradients(whole), strict=True):
        torch.testing.assert_close(torch.cat(got), whole_gradient, rtol=0, atol=1e-14)
    assert resident * EXPERT_BYTES <= experts.peak_bytes <= budget_bytes


def test_experts_that_do_not_fit_are_refused() -> None:
    here, coming = SmallExperts(range(2), HIDDEN, 1), SmallExperts(range(2, 4), HIDDEN, 1)
    with pytest.raises(
        ValueError, match=f"2 resident experts and one that comes have {3 * EXPERT_BYTES} bytes"
    ):
        OffloadedExperts(here, coming, 3 * EXPERT_BYTES - 1)


def test_counts_of_another_number_of_experts_are_refused() -> None:
    experts = OffloadedExperts(None, SmallExperts(range(2), HIDDEN, 1), EXPERT_BYTES)
    with pytest.raises(ValueError, match="counts of 3 experts; 0 are resident and 2 offloaded"):
        experts(torch.zeros(0, HIDDEN, dtype=torch.float64), torch.tensor([0, 0, 0]))
