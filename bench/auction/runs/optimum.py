"""The offline optimum of a setting's day: what the auction is held against in Figure 12."""

from bench.workloads.paper import PaperSetting, draw
from infra.simulation.simulator import Simulation
from solvers.auction.hindsight import instances_of
from solvers.auction.offline import offline_optimum

TIME_LIMIT_S = 1_800.0
RELATIVE_GAP = 0.01


def measure_optimum(setting: PaperSetting, seed: int) -> dict[str, float]:
    """Welfare of the best plans found, the bound that none exceeds, and the gap between them.

    The instance is made from the ledger of a simulated day, whose clock and quotes are the online path's.
    """
    cell, workload = draw(setting, seed)
    ledger = Simulation(cell, workload.bids, workload.quotes).run().ledger
    (instance,) = instances_of(entry.envelope.event for entry in ledger).values()
    solution = offline_optimum(instance, TIME_LIMIT_S, RELATIVE_GAP)
    return {
        "welfare_micros": solution.welfare_micros,
        "bound_micros": solution.bound_micros,
        "gap": solution.gap,
        "wall_s": solution.seconds,
        "bids": len(instance.tasks),
    }
