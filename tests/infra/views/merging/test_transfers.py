"""Donors and receivers from the log: pairs of tasks, their forecast gain and their result."""

import json
from pathlib import Path

import pytest

from infra.cli import run
from infra.commands.log_files import LogFiles
from infra.simulation.simulator import SimulatedRun
from infra.views.merging.heat_map import MOST_TASKS, draw
from infra.views.merging.transfers import Transfer, Transfers, tasks_in
from streams.policies.merging.kind_of_jobs import task_key
from tests.infra.simulation.merging.small import (
    ZONE,
    SmallTruth,
    merging_cell,
    simulated,
    submit,
)
from tests.infra.views.merging.logs import merged_run
from tests.support.hostile import HOSTILE

PNG = b"\x89PNG\r\n"


def found(run: SimulatedRun, decisions_first: bool = False) -> dict[tuple[str, str, str], Transfer]:
    transfers = Transfers(ZONE, task_key)

    def fold_events() -> None:
        for entry in run.ledger:
            transfers.fold_event(entry.envelope.event)

    def fold_decisions() -> None:
        for decision in run.decisions:
            transfers.fold_decision(decision.outcome)

    for take in (fold_decisions, fold_events) if decisions_first else (fold_events, fold_decisions):
        take()
    return {(each.mode, each.donor, each.receiver): each for each in transfers.found()}


def test_pair_has_forecast_and_result() -> None:
    ((pair, transfer),) = found(merged_run()).items()
    assert pair == ("temporal", "a.jsonl", "a.jsonl")
    assert transfer.forecast == pytest.approx(0.0, abs=0.05)
    assert transfer.gain == pytest.approx(0.0, abs=1e-6), "both have reached 60 %"
    assert (transfer.merges, transfer.undone, transfer.saved_s) == (1, 0, 300.0)


def test_events_and_decisions_are_read_in_any_order() -> None:
    for mode in ("temporal", "spatial"):
        assert found(merged_run(mode), decisions_first=True) == found(merged_run(mode))


def test_undone_merge_is_counted_without_gain() -> None:
    (transfer,) = found(merged_run(helps=0)).values()
    assert (transfer.merges, transfer.undone, transfer.gain) == (1, 1, None)


def test_shared_run_makes_both_donor_and_receiver() -> None:
    # They need all of their iterations, so that they are not merged.
    whole = {"accuracy": None, "most_iterations": 1_000}
    jobs = [(1.0, submit("zero", "a", target=whole)), (2.0, submit("one", "b", target=whole))]
    pairs = found(simulated(merging_cell(), jobs))
    spatial = {pair[1:] for pair in pairs if pair[0] == "spatial"}
    assert {("a.jsonl", "b.jsonl"), ("b.jsonl", "a.jsonl")} <= spatial
    assert all(transfer.forecast is not None and not transfer.merges for transfer in pairs.values())


def test_validation_data_separate_tasks_of_same_data() -> None:
    other = submit("one", validation_path="b.validation.jsonl")
    names = tasks_in(list(found(simulated(merging_cell(), [(1.0, submit("zero")), (2.0, other)])).values()))
    assert names == ["a.jsonl (validated on a.validation.jsonl)", "a.jsonl (validated on b.validation.jsonl)"]


def test_a_heat_map_is_a_png(tmp_path: Path) -> None:
    draw(list(found(merged_run()).values()), tmp_path / "map.png", "Donors and receivers")
    assert (tmp_path / "map.png").read_bytes().startswith(PNG)


@pytest.mark.slow
@pytest.mark.parametrize(
    "hostile", [*HOSTILE.values(), "$\\frac{", "龍"], ids=[*HOSTILE, "mathtext", "script"]
)
def test_names_of_data_cannot_break_a_heat_map(
    tmp_path: Path, hostile: str, recwarn: pytest.WarningsRecorder
) -> None:
    name = f"{hostile}.jsonl" * 9
    draw([Transfer("spatial", name, name, 0.1, [0.2], 2, 1)], tmp_path / "map.png", hostile)
    assert (tmp_path / "map.png").read_bytes().startswith(PNG)
    assert not list(recwarn)


def test_tasks_beyond_limit_are_not_drawn(tmp_path: Path) -> None:
    many = [Transfer("temporal", f"{n}.jsonl", f"{n}.jsonl", 0.1 * n) for n in range(MOST_TASKS + 1)]
    many[0].merges = 1
    draw(many, tmp_path / "map.png", "many")
    assert tasks_in(many)[0] == "0.jsonl"


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("log")
    transfers = merged_run()
    with LogFiles(folder) as files:
        files.write(transfers.ledger, transfers.decisions)
    return str(folder / "ledger.jsonl")


def test_the_command_shows_a_table_and_draws(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, ledger: str
) -> None:
    assert run(["transfers", ZONE, "--from", ledger, "--out", str(tmp_path / "map.png")]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "temporal" in line)
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[:3] == ["temporal", "a.jsonl", "a.jsonl"]
    assert cells[4:] == ["0.0%", "1", "0", "300 s"]
    assert (tmp_path / "map.png").read_bytes().startswith(PNG)


def test_programs_get_every_pair(capsys: pytest.CaptureFixture[str], ledger: str) -> None:
    assert run(["transfers", ZONE, "--from", ledger, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["cell"], printed["zone"]) == ("c", ZONE)
    (pair,) = printed["transfers"]
    assert (pair["donor"], pair["merges"], pair["saved_s"]) == ("a.jsonl", 1, 300.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["other", "--from", "{ledger}"], "the log has no pair of tasks of zone other"),
        ([ZONE, "--from", "{ledger}", "--cell", "d"], f"no pair of tasks of zone {ZONE} of cell d"),
        ([ZONE, "--from", "{folder}/none"], "none: No such file"),
        ([ZONE, "--from", "{ledger}", "--out", "{folder}/no/map.png"], "map.png: No such file"),
    ],
)
def test_undrawable_result_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, ledger: str, options: list[str], message: str
) -> None:
    given = [option.format(ledger=ledger, folder=tmp_path) for option in options]
    assert run(["transfers", *given]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert (error.count("\n"), error[:10]) == (1, "millrace: ")


def test_unshared_jobs_are_in_no_pair() -> None:
    jobs = [(1.0, submit("zero", sharing=False)), (2.0, submit("one", "b", sharing=False))]
    transfers = found(simulated(merging_cell(), jobs, SmallTruth({("a", "b"): 3})))
    assert all(not transfer.merges for transfer in transfers.values())
