"""A deployment runs executors for the right nodes, with the right settings."""

import json
from pathlib import Path

import pytest

from executors.node.settings import ExecutorSettings
from infra.deployment.cells import PresentCell, first_layout
from infra.deployment.deployment_folders import Folders
from infra.deployment.executors import executor_environment, served_nodes
from infra.figures.nodes import NodeState
from schemas.cells import Borrower, CellConfigured, GpuType, Lending, Node, Zone
from schemas.elastic.settings import ElasticPolicy
from tests.support.cells import configuration, zone
from tests.support.loans import lender, lending_cell

EIGHT = GpuType(name="fast", samples_per_s=80.0, memory_gib=640.0, gpus=8)
BORROWER = Lending(borrowers=(Borrower(zone="e"),))


def elastic(*nodes: str) -> Zone:
    """Zone "e" of servers with eight GPUs each."""
    servers = tuple(Node(id=node, gpu_type="fast", tariff="t") for node in nodes)
    return zone(
        id="e",
        base_model="unused",
        gpu_types=(EIGHT,),
        nodes=servers,
        policy=ElasticPolicy(reference_gpu_type="fast"),
    )


def serving(lending: Lending | None) -> Zone:
    """Zone "inf" of two servers, which runs no jobs."""
    nodes = tuple(Node(id=node, gpu_type="fast", tariff="t") for node in ("s1", "s2"))
    return lender(gpu_types=(EIGHT,), nodes=nodes, lending=lending)


def present(cell: CellConfigured, **moved: str) -> PresentCell:
    """A cell as configured, but for nodes that serve other zones than their own."""
    found = first_layout(cell)
    for node, zone_id in moved.items():
        found.nodes.by_id[node].zone = zone_id
    return found


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


def runners(cell: PresentCell, node: str, folders: Folders) -> list[str]:
    return json.loads(executor_environment(cell, node, folders)["MILLRACE_RUNNERS"])


def test_servers_without_commands_need_no_executors(folders: Folders) -> None:
    cell = present(configuration(zones=(elastic("t1"), serving(lending=None))))
    assert served_nodes(cell, folders) == ["t1"]


def test_lendable_servers_have_runners_of_borrowers(
    folders: Folders,
) -> None:
    cell = present(configuration(zones=(elastic("t1"), serving(BORROWER))))
    assert served_nodes(cell, folders) == ["t1", "s1", "s2"]
    assert runners(cell, "s1", folders) == ["elastic"]


def test_executor_setup_is_equal_during_a_loan(folders: Folders) -> None:
    configured = configuration(zones=(elastic("t1"), serving(BORROWER)))
    before, during = present(configured), present(configured, s1="e")
    assert executor_environment(before, "s1", folders) == {
        **executor_environment(during, "s1", folders),
        "MILLRACE_BASE_MODEL": "served",
    }


def test_lent_server_has_base_model_of_borrower(folders: Folders) -> None:
    auction = present(lending_cell())
    assert executor_environment(auction, "s1", folders)["MILLRACE_BASE_MODEL"] == "tiny"
    assert runners(auction, "s1", folders) == ["lora"]
    both = Lending(borrowers=(Borrower(zone="e"), Borrower(zone="z")))
    mixed = present(configuration(zones=(zone(), elastic("t1"), serving(both))))
    assert executor_environment(mixed, "s1", folders)["MILLRACE_BASE_MODEL"] == "tiny"
    assert runners(mixed, "s1", folders) == ["elastic", "lora"]


def test_node_lent_by_operator_serves_borrowing_zone(folders: Folders) -> None:
    cell = present(configuration(zones=(zone(), elastic("t1", "t2"))), t2="z")
    assert runners(cell, "t2", folders) == ["lora"]
    assert executor_environment(cell, "t2", folders)["MILLRACE_BASE_MODEL"] == "tiny"


def test_executor_gets_gpu_count_and_model_folder(folders: Folders) -> None:
    cell = present(configuration(zones=(zone(), elastic("t1"))))
    environment = executor_environment(cell, "t1", folders)
    assert environment["MILLRACE_GPUS"] == "8"
    assert environment["MILLRACE_MODEL_ROOT"] == str(folders.models)
    assert executor_environment(cell, "a1", folders)["MILLRACE_GPUS"] == "1"


@pytest.mark.parametrize(
    ("timeout_s", "heartbeat_s"), [(60.0, 15.0), (14_400.0, 3_600.0), (86_400.0, 3_600.0)]
)
def test_heartbeats_fit_timeout_and_executor_settings(
    folders: Folders, monkeypatch: pytest.MonkeyPatch, timeout_s: float, heartbeat_s: float
) -> None:
    cell = present(configuration(zones=(elastic("t1"),), node_timeout_s=timeout_s))
    for name, value in executor_environment(cell, "t1", folders).items():
        monkeypatch.setenv(name, value)
    assert ExecutorSettings(cell="c", node="t1").node_heartbeat_s == heartbeat_s


def test_nodes_registered_later_are_served_once_they_were(folders: Folders) -> None:
    cell = present(configuration(zones=(elastic("t1"), serving(BORROWER))))
    cell.nodes.by_id["s3"] = NodeState("s3", "inf", "inf", "fast", "t")
    assert served_nodes(cell, folders) == ["t1", "s1", "s2"]
    (folders.executors / "c" / "nodes" / "s3").mkdir(parents=True)
    assert served_nodes(cell, folders) == ["t1", "s1", "s2", "s3"]
