"""`millrace state`: the state of a cell at the end of a ledger."""

import json
from pathlib import Path

import pytest

from infra.cli import run
from infra.views.state_lines import MOST_ROWS, state_lines
from schemas.elastic.commands import WorkersAssigned
from streams.cell.state_machine import Cell
from streams.replay.files import ledger_line
from tests.support.elastic import (
    ElasticBench,
    elastic_cell,
    progressed,
    started,
    submit,
    tick,
    withdraw,
)

PAGE = Path(__file__).parents[2] / "docs" / "command-line" / "log.md"
COMMAND = "millrace state c --zone z --from ledger.jsonl"


@pytest.fixture
def bench() -> ElasticBench:
    """Two jobs that run, one of which is withdrawn, and one that waits for its servers."""
    bench = ElasticBench()
    bench.send(elastic_cell(2), tick(0.0), submit("bert", 6_000, (2, 4)), submit("vit", 900, (2, 2)))
    orders = [each for each in bench.send(tick(60.0)) if isinstance(each, WorkersAssigned)]
    bench.send(*map(started, orders))
    bench.send(*(progressed(each, 120) for each in orders), submit("wide", 600, (6, 6), user="ben"))
    bench.send(tick(120.0), withdraw("vit"))
    return bench


@pytest.fixture
def ledger(bench: ElasticBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The ledger of these jobs, in the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"".join(map(ledger_line, bench.ledger)))
    return path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["state", *arguments, "--from", "ledger.jsonl"]) == 0
    return capsys.readouterr().out


@pytest.mark.usefixtures("ledger")
class TestCommand:
    def test_example_of_page_is_printed(self, capsys):
        page = PAGE.read_text()
        start = page.index(f"$ {COMMAND}\n")
        _, *shown = page[start : page.index("\n```", start)].splitlines()
        assert run(COMMAND.split()[1:]) == 0
        assert capsys.readouterr().out.splitlines() == shown

    def test_json_is_the_described_cell(self, capsys, bench):
        assert json.loads(printed(capsys, "c", "--json")) == bench.cell.describe()

    def test_one_job(self, capsys, bench):
        found = json.loads(printed(capsys, "c", "--job", "wide", "--json"))
        assert found["job"] == {"id": "wide", "zone": "z", **bench.described["jobs"]["wide"]}
        assert (found["cell"], found["ledger_offset"]) == ("c", bench.ledger[-1].offset)

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            (["d"], "the ledger has no event of cell d: it has c"),
            (["c", "--zone", "y"], "cell c has no zone y: it has z"),
            (["c", "--job", "x"], "cell c has no live job x: it has bert, vit, wide"),
        ],
        ids=["cell", "zone", "job"],
    )
    def test_unknown_name_is_answered_with_existing_ones(self, capsys, arguments, error):
        assert run(["state", *arguments, "--from", "ledger.jsonl"]) == 1
        assert capsys.readouterr().err.startswith(f"millrace: {error}")


def test_job_of_several_processes_has_operator_fields(bench):
    bert, vit, wide = (bench.job(id) for id in ("bert", "vit", "wide"))
    assert (bert["state"], bert["samples_done"], bert["total_samples"]) == ("running", 120, 6_000)
    assert sum(bert["members"].values()) == bert["workers"]
    assert (vit["state"], vit["ends"], vit["members"]) == ("ending", "withdrawn", {})
    ((node, leaving),) = vit["leaving"].items()
    assert node == vit["leader"]
    assert (leaving["generation"], leaving["processes"], leaving["for_s"]) == (1, 2, 0.0)
    assert (wide["state"], wide["generation"], wide["retry_in_s"]) == ("waiting", 0, 0.0)


def test_a_cell_without_configuration_has_no_zones():
    assert Cell("c").describe()["zones"] == {}


def test_tables_omit_empty_columns_and_long_tails():
    rows = {f"j{number}": {"state": "running", "error": None} for number in range(MOST_ROWS + 2)}
    title, header, *lines = state_lines({"jobs": rows})
    assert (title, header, lines[0]) == ("jobs", "  id   state", "  j0   running")
    assert lines[-1] == "  … and 2 more: --json has all"
    assert len(lines) == MOST_ROWS + 1
