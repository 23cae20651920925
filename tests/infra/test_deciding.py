"""A command that decides says why its first run takes longer."""

import numba
import pytest

from infra.commands.deciding import deciding


def test_it_says_once_that_kernels_are_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    with deciding("testing"):
        assert numba.njit(lambda number: number + 1)(1) == 2
        assert numba.njit(lambda number: number + 2)(1) == 3
    assert capsys.readouterr().err == (
        "millrace: kernels are compiled first, once for this version of Millrace: a minute or two\n"
    )


def test_it_says_nothing_where_none_are(capsys: pytest.CaptureFixture[str]) -> None:
    with deciding("testing"):
        pass
    numba.njit(lambda number: number + 3)(1)
    assert capsys.readouterr().err == ""
