"""A command that decides reports why its first run takes longer."""

from pathlib import Path

import numba
import pytest

from infra.commands.deciding import deciding


def test_compilation_of_kernels_is_remarked_once(capsys: pytest.CaptureFixture[str]) -> None:
    with deciding("testing"):
        assert numba.njit(lambda number: number + 1)(1) == 2
        assert numba.njit(lambda number: number + 2)(1) == 3
    assert capsys.readouterr().err == (
        "millrace: kernels are compiled, which takes a minute or two, once for this version of Millrace\n"
    )


def test_unkept_kernels_are_remarked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "file"))
    with deciding("testing"):
        numba.njit(lambda number: number + 4)(1)
    assert capsys.readouterr().err == (
        "millrace: kernels are compiled, which takes a minute or two, as in each run, since they cannot be "
        f"kept in {tmp_path / 'file'}: File exists: set NUMBA_CACHE_DIR to a folder that can be written\n"
    )


def test_no_compilation_has_no_remark(capsys: pytest.CaptureFixture[str]) -> None:
    with deciding("testing"):
        pass
    numba.njit(lambda number: number + 3)(1)
    assert capsys.readouterr().err == ""
