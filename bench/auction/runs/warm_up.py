"""Compile the kernels that trials take, those of the solvers too, which no cell calls."""

from bench.auction.runs.day import simulate_day
from bench.auction.runs.optimum import measure_clearing_bound
from bench.workloads.paper import PaperSetting
from schemas.policies import TitanPolicy
from streams import warm_up as cells

_SMALL = PaperSetting(nodes=2, slots=6, arrivals_per_slot=4.0, work_scale=0.05)


def warm_up() -> None:
    """Run what is smallest of each kind."""
    cells.warm_up()
    simulate_day(_SMALL, 0, lambda _declared: TitanPolicy(kind="titan"))
    measure_clearing_bound(_SMALL, 0)
