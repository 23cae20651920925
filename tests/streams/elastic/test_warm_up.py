"""A worker folds a history before its first event, so that no round waits for a compiler."""

from schemas.elastic.outcomes import JobResized
from schemas.loans import ReclaimPlanned
from streams.cell.state_machine import Cell
from streams.policies.elastic.warm_up import warm_up_events
from tests.support.cells import Bench


def test_warm_up_scales_by_each_scheme_and_reclaims():
    bench = Bench(cell=Cell("elastic"))
    outcomes = bench.send(*warm_up_events())
    started = {o.job_id: o.workers for o in outcomes if isinstance(o, JobResized)}
    assert started == {"lyra-elastic": 2, "lyra-large": 2, "pollux-elastic": 2}, "a knapsack, and a search"
    (reclaim,) = [o for o in outcomes if isinstance(o, ReclaimPlanned)]
    assert reclaim.servers == ("lent",)
    assert not bench.cell.zones["lyra"].free_to_leave(["lent"])
