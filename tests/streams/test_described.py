"""The described state of zones for an operator, policy by policy. Histories check its form."""

from schemas.auction.settings import TitanPolicy
from schemas.solves import SolveRequested
from tests.support.cells import Bench, bid, nodes_by_slot, offline, started, tick, zone
from tests.support.described import check_described
from tests.support.merging_script import Script, of, share


def test_auction_job_has_plan_and_payment():
    bench = Bench.configured()
    (admitted,) = bench.send(bid())
    job = check_described(bench.cell)["zones"]["z"]["jobs"]["j"]
    assert (job["state"], job["payment_micros"]) == ("planned", admitted.payment_micros)
    assert {part["slot"]: part["node"] for part in job["plan"]} == nodes_by_slot(admitted)
    node = job["plan"][0]["node"]
    bench.send(tick(0), started(node, 0, 0))
    job = bench.job("j")
    assert (job["state"], job["runs"]) == ("running", [{"slot": 0, "from_samples": 0}])


def test_auction_has_horizon_nodes_and_prices():
    bench = Bench.configured()
    bench.send(bid(), tick(0), offline("a2"))
    found = bench.described
    assert (found["slot"], found["horizon"]) == (0, {"first_slot": 1, "slots": 6})
    assert {node: each["up"] for node, each in found["nodes"].items()} == {
        "a1": True,
        "a2": False,
        "b1": True,
    }
    assert [prices["gpu_type"] for prices in found["prices"]] == ["fast", "slow"]


def test_waiting_bid_names_its_request():
    bench = Bench.configured(zones=(zone(policy=TitanPolicy(kind="titan")),))
    (asked,) = of(SolveRequested, bench.send(bid(), tick(0.6)))
    found = bench.described
    assert found["solver_requests"] == [asked.request_id]
    job = found["jobs"]["j"]
    assert (job["state"], job["solver_request"]) == ("waiting", asked.request_id)
    assert bench.cell.describe()["jobs"] == {"waiting": 1}


def test_merging_job_has_profile_plan_and_task():
    script = Script()
    script.ready("a")
    assert script.job("a")["state"] == "waiting"
    asked = script.ask()
    assert script.bench.described["solver_requests"] == [asked.request_id]
    script.answer(share("a", gpus=2), asked=asked)
    job, found = script.job("a"), script.bench.described
    assert (job["state"], found["solver_requests"]) == ("running", [])
    task = found["tasks"][job["task"]]
    assert (task["mode"], task["jobs"], task["members"]) == ("normal", ["a"], {"n0": 2})
    assert found["nodes"]["n0"] == {"gpus": 4, "free": 2, "held": {job["task"]: 2}, "open": True}
