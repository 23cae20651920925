"""The cell that the demo writes, and the speeds that it configures it with."""

from pathlib import Path

import pytest

from infra.commands.options import CELLS_DIRECTORY
from infra.demo.demo_cell import (
    CELL_FILE,
    MOST_PACE,
    SAFETY,
    USUAL_CUTTING_S,
    FirstRun,
    pace_of,
    write_cell,
    zone_at,
)
from schemas.cells import CellConfigured
from streams.worker.cells_file import load_cells


def written(folder: Path, policies: set[str], pace: float) -> CellConfigured:
    write_cell(CELLS_DIRECTORY / CELL_FILE, folder / "cells.yaml", policies, pace)
    (cell,) = load_cells(folder / "cells.yaml", 0.0)
    return cell


@pytest.mark.parametrize(
    "policies", [{"auction"}, {"elastic", "inference"}, {"merging"}, {"experts"}, {"auction", "merging"}]
)
def test_a_cell_has_the_zones_of_its_scenes(tmp_path: Path, policies: set[str]) -> None:
    assert {zone.policy.kind for zone in written(tmp_path, policies, 1.0).zones} == policies


def test_slots_and_limits_grow_on_slow_machine(tmp_path: Path) -> None:
    usual = written(tmp_path, {"elastic", "inference"}, 1.0)
    slow = written(tmp_path, {"elastic", "inference"}, 3.0)
    assert slow.slot_s == 3 * usual.slot_s
    assert slow.node_timeout_s == 3 * usual.node_timeout_s
    notices = [zone.lending.notice_s for cell in (usual, slow) for zone in cell.zones if zone.lending]
    assert notices[1] == 3 * notices[0]
    (usual_tuning,), (slow_tuning,) = (written(tmp_path, {"merging"}, pace).zones for pace in (1.0, 3.0))
    assert slow_tuning.policy.solve_limit_s == 3 * usual_tuning.policy.solve_limit_s


@pytest.mark.parametrize(
    ("cutting_s", "pace"),
    [
        (0.1, 1.0),
        (USUAL_CUTTING_S, 1.0),
        (3 * USUAL_CUTTING_S, 3.0),
        (100 * USUAL_CUTTING_S, MOST_PACE),
    ],
)
def test_pace_has_lower_and_upper_limit(cutting_s: float, pace: float) -> None:
    assert pace_of(cutting_s) == pytest.approx(pace)


def test_loss_at_start_of_slot_is_not_planned() -> None:
    at_once = FirstRun(samples=80, slot_start_s=10.0, started_s=10.0, finished_s=12.0)
    late = FirstRun(samples=80, slot_start_s=10.0, started_s=11.0, finished_s=13.0)
    assert at_once.sustained_samples_per_s(slot_s=4.0) == SAFETY * 40.0
    assert late.sustained_samples_per_s(slot_s=4.0) == SAFETY * 30.0


def test_run_begun_after_its_slot_gives_speed() -> None:
    after = FirstRun(samples=80, slot_start_s=10.0, started_s=20.0, finished_s=22.0)
    assert after.sustained_samples_per_s(slot_s=4.0) == SAFETY * 10.0


def test_tasks_keep_their_parts_of_a_node() -> None:
    (cell,) = load_cells(CELLS_DIRECTORY / CELL_FILE, 0.0)
    before = cell.zones[0]
    after = zone_at(before, {"A100": 40.0, "A40": 8.0})
    assert {gpu.name: gpu.samples_per_s for gpu in after.gpu_types} == {"A100": 40.0, "A40": 8.0}
    for old, new in zip(before.throughput, after.throughput, strict=True):
        speed = {gpu.name: gpu.samples_per_s for gpu in before.gpu_types}[old.gpu_type]
        now = {gpu.name: gpu.samples_per_s for gpu in after.gpu_types}[new.gpu_type]
        assert new.samples_per_s / now == pytest.approx(old.samples_per_s / speed, abs=0.01)
