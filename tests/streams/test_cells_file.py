"""The cells' file: its valid contents, and one clear line for each invalid one."""

import re
from pathlib import Path

import pytest
import yaml

from schemas.auction.bids import BidTerms
from schemas.auction.settings import PdftspPolicy
from schemas.decisions import JobAdmitted, JobRejected
from schemas.jobs import JobSubmitted
from schemas.lora import Dataset, LoraWorkload
from streams.cell.state_machine import Cell
from streams.worker.cells_file import MAX_FILE_BYTES, CellsFile, CellsFileError, load_cells
from tests.support.cells import Bench

CELL = """
  - cell: alpha
    tariffs: [{name: flat, micros_per_kwh: [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}]
    zones:
      - id: z1
        base_model: tiny
        base_model_memory_gib: 4
        gpu_types: [{name: a100, samples_per_s: 10, memory_gib: 80}]
        nodes: [{id: n1, gpu_type: a100, tariff: flat}]
        policy: {kind: pdftsp, money_unit_micros: 1, max_value_per_compute_micros: 9,
                 max_value_per_memory_micros: 9}
"""


def write(path: Path, text: str) -> Path:
    file = path / "cells.yaml"
    file.write_text(text)
    return file


def test_epoch_is_given_where_the_file_has_none(tmp_path: Path) -> None:
    file = write(tmp_path, f"cells:{CELL}{CELL.replace('alpha', 'beta')}    epoch_s: 7\n")

    alpha, beta = load_cells(file, epoch_s=5.0)

    assert (alpha.cell, alpha.epoch_s, beta.cell, beta.epoch_s) == ("alpha", 5.0, "beta", 7.0)


def test_pdftsp_is_one_line(tmp_path: Path) -> None:
    text = re.sub(r"policy: \{.*?\}", "policy: {kind: pdftsp}", CELL, flags=re.DOTALL)
    (cell,) = load_cells(write(tmp_path, f"cells:{text}"), epoch_s=0.0)
    policy = cell.zones[0].policy
    assert isinstance(policy, PdftspPolicy)
    assert (policy.steepness, policy.bounds) == ("learned", None)
    workload = LoraWorkload(
        work_samples=100,
        dataset=Dataset(path="d.jsonl", samples=100),
        memory_gib=76.0,
        speed_samples_per_s={"a100": 10.0},
    )
    slots_s = [cell.slot_s * slots for slots in (1, 1, 2)]
    bids = [
        JobSubmitted(
            cell="alpha",
            job_id=f"j{number}",
            user="u",
            zone="z1",
            workload=workload.model_copy(update={"work_samples": int(5 * cell.slot_s)}),
            terms=BidTerms(bid_micros=10**6, deadline_s=deadline_s),
        )
        for number, deadline_s in enumerate(slots_s)
    ]
    bench = Bench(cell=Cell("alpha"))
    bench.send(cell)
    first, second, third = (bench.send(one)[0] for one in bids)
    assert isinstance(first, JobAdmitted)
    assert isinstance(second, JobRejected)
    assert isinstance(third, JobAdmitted)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        pytest.param("", "expected `cells:`", id="empty"),
        pytest.param("cells: []", "at least one cell", id="no cell"),
        pytest.param("cells: 5", "at least one cell", id="no list"),
        pytest.param(f"cells:{CELL}extra: 1\n", "nothing else", id="unknown section"),
        pytest.param(f"cells:{CELL}    epoch_s: soon\n", "cells[0].epoch_s", id="epoch no number"),
        pytest.param(
            f"cells:{CELL}    epoch_s: 2026-01-01\n", "cells[0].epoch_s: Input should be", id="date"
        ),
        pytest.param(f"cells:{CELL}    epoch_s: .nan\n", "cells[0]", id="not a number"),
        pytest.param(f"cells:{CELL}    epoch_s: 1\n    colour: red\n", "cells[0].colour", id="unknown field"),
        pytest.param(
            f"cells:{CELL}    epoch_s: 1\n    cell: b\n",
            "cells.yaml:13: cell is given twice",
            id="repeated key",
        ),
        pytest.param(
            f"cells:{CELL}    epoch_s: 1\n{CELL}    epoch_s: 1\n", "cell alpha is given twice", id="same cell"
        ),
        pytest.param(
            f"cells:{CELL.replace('memory_gib: 80', 'memory_gib: 4')}    epoch_s: 1\n",
            "cells[0].zones[0]: zone z1: a node of type a100 has 4.0 GiB, too small",
            id="small node",
        ),
        pytest.param(
            f"cells:{CELL.replace('nodes: [{id: n1, gpu_type: a100, tariff: flat}]', 'nodes: []')}"
            "    epoch_s: 1\n",
            "cells[0].zones[0]: zone z1: a zone keeps at least one node",
            id="no node",
        ),
        pytest.param("cells: &a [*a]", "aliases are not allowed", id="alias"),
        pytest.param("cells: " + "[" * 100_000, "nested deeper", id="deep"),
        pytest.param(
            "cells: !!python/object:os.system []", "python/object:os.system is not allowed", id="object"
        ),
        pytest.param("cells: [", "cells.yaml:2: not YAML", id="no YAML"),
        pytest.param("cells: \x00", "cells.yaml: ", id="control character"),
    ],
)
def test_fault_is_named_on_one_line(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(CellsFileError) as refused:
        load_cells(write(tmp_path, text), 0.0)

    assert fault in str(refused.value)
    assert str(refused.value).count("\n") == 0


def test_every_fault_has_a_line_of_its_own(tmp_path: Path) -> None:
    text = f"cells:{CELL}    epoch_s: x\n    slot_s: -1\n"

    with pytest.raises(CellsFileError) as refused:
        load_cells(write(tmp_path, text), 0.0)

    assert len(str(refused.value).splitlines()) == 2


def test_file_that_is_absent_or_too_large(tmp_path: Path) -> None:
    with pytest.raises(CellsFileError, match="No such file"):
        load_cells(tmp_path / "absent.yaml", 0.0)
    with pytest.raises(CellsFileError, match="larger than"):
        load_cells(write(tmp_path, "#" * (MAX_FILE_BYTES + 1)), 0.0)


def test_file_of_many_cells_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    parse = yaml.parse
    monkeypatch.setattr(
        yaml, "parse", lambda text, **settings: parsed.append(text) or parse(text, **settings)
    )
    names = [f"cell-{number}" for number in range(100)]

    file = CellsFile.read(write(tmp_path, "cells:" + "".join(CELL.replace("alpha", name) for name in names)))

    assert [file.cell(name, 5.0).cell for name in file.names] == names
    assert len(parsed) == 1


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    file = tmp_path / "cells.yaml"
    file.write_bytes(b"cells: \xff")

    with pytest.raises(CellsFileError, match="not UTF-8: invalid start byte at byte 7"):
        load_cells(file, 0.0)
