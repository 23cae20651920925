"""How much of a device's memory experts may take, where nobody says so."""

from torch import nn

from executors.moe.training.spread import RESERVED_RATIO, budget_of_free, expert_budget
from tests.support.parallel_experts import CPU


def test_on_a_cpu_memory_is_not_short_unless_the_node_says_so() -> None:
    dense = nn.Linear(4, 4).parameters()
    assert expert_budget(None, CPU, dense) is None
    assert expert_budget(1.5, CPU, dense) == 3 * 2**29


def test_what_is_free_is_for_the_dense_part_first_and_a_reserve_is_left() -> None:
    assert budget_of_free(1_000, dense_bytes=50) == int(800 * (1 - RESERVED_RATIO))


def test_there_is_no_room_where_the_dense_part_takes_all() -> None:
    assert budget_of_free(1_000, dense_bytes=251) == 0
