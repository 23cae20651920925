"""Every numeric option of every command: what is out of bounds is one line, never a traceback."""

from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import typer

from infra import cli
from tests.support.examples import long

ROOT = Path(__file__).parents[2]
NOWHERE = ["--bootstrap-servers", "127.0.0.1:1"]
NO_TRACE = ["--trace", "none.csv"]
HARMLESS = {
    "bench": ["nothing"],
    "clock": ["infra/cells/demo.yaml", *NOWHERE],
    "demo": NO_TRACE,
    "explain": ["j", *NOWHERE],
    **{
        f"nodes {order}": ["n", "--cell", "c", *NOWHERE]
        for order in ("cordon", "uncordon", "retire", "return")
    },
    "load": ["--file", "none.csv", "--cell", "c", "--zone", "z", *NOWHERE],
    "nodes lend": ["n", "--cell", "c", "--zone", "z", *NOWHERE],
    "nodes register": [
        *("n", "--cell", "c", "--zone", "z", "--gpu-type", "g", "--tariff", "t"),
        *NOWHERE,
    ],
    "prices": ["c", "z", *NOWHERE],
    "profile": ["none", "none.jsonl"],
    "quote": ["none.yaml", *NOWHERE],
    "simulate": ["--jobs", "2", "--span-slots", "2"],
    "submit": ["none.yaml", *NOWHERE],
    "topics check": NOWHERE,
    "topics create": NOWHERE,
    "transfers": ["z", *NOWHERE],
    "up": ["none.yaml"],
    "vendor": ["none.yaml", *NOWHERE],
    "vendor-quote": ["none.yaml", *NOWHERE],
    "watch": NOWHERE,
    "withdraw": ["j", "--user", "u", *NOWHERE],
    "zone": ["none.yaml", "--cell", "c", "--zone", "z", *NOWHERE],
}
"""Arguments with which a command is over at once, whatever its numbers are."""

VALUES = ("inf", "-inf", "nan", "1e300", "-1", "0", "9" * 400)


def numeric_options(app: typer.Typer, prefix: str = "") -> Iterator[tuple[str, str]]:
    """The name of each command that takes numbers, and of each of its options that does."""
    for group in app.registered_groups:
        yield from numeric_options(group.typer_instance, f"{group.name} ")
    for command in app.registered_commands:
        name = command.name or command.callback.__name__.replace("_", "-")
        for parameter, hint in get_type_hints(command.callback, include_extras=True).items():
            kind, option = (*get_args(hint), None, None)[:2]
            if {int, float} & {kind, *get_args(kind)}:
                names = option.param_decls or [f"--{parameter.replace('_', '-')}"]
                yield f"{prefix}{name}", names[0]


OPTIONS = sorted(set(numeric_options(cli.app_with(*cli.COMMANDS))))


def test_numbers_are_found_wherever_they_are() -> None:
    assert {name for name, _ in OPTIONS} == HARMLESS.keys()
    assert len(OPTIONS) >= 15


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value[:6])
@pytest.mark.parametrize(("command", "option"), OPTIONS, ids=map(" ".join, OPTIONS))
def test_extreme_number_is_refused_or_used(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, option: str, value: str
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("infra.log.target.ANSWER_TIMEOUT_S", 0.1)
    status = cli.run([*command.split(), *HARMLESS[command], option, value])
    errors = capsys.readouterr().err
    if value not in ("-1", "0"):
        assert status != 0
    assert "Traceback" not in errors
    if status:
        assert errors.startswith("millrace: ")
        assert errors.count("\n") == 1


@pytest.mark.parametrize("value", ["inf", "many", *long("nan", "-1")])
@pytest.mark.parametrize("command", [["demo", "--bids", "10", "--seed", "1"], ["up"]], ids=["demo", "up"])
def test_extreme_broker_setting_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command, value: str
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("MILLRACE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("MILLRACE_BROKER_PORT", value)
    assert cli.run(command) != 0
    assert capsys.readouterr().err.splitlines()[-1].startswith("millrace: settings: MILLRACE_BROKER_PORT: ")


@pytest.mark.parametrize("epoch_s", [4_102_444_800.0, 4_102_444_800.0 - 3_600])
def test_simulation_beyond_bounds_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, epoch_s: float
) -> None:
    cells = (ROOT / "infra/cells/demo.yaml").read_text()
    file = tmp_path / "cells.yaml"
    file.write_text(cells.replace("    slot_s: 4.0\n", f"    slot_s: 400.0\n    epoch_s: {epoch_s}\n"))
    assert cli.run(["simulate", "--cells", str(file), "--jobs", "3", "--span-slots", "2"]) != 0
    assert "beyond the year 2100" in capsys.readouterr().err
