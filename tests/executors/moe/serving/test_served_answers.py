"""Answers of a service are those of the model in one process, wherever its experts are."""

from pathlib import Path
from typing import Any

import pytest

from bench.network.links import Place
from bench.network.ranks import run_ranks
from solvers.experts.schemes import SCHEMES
from tests.support.served_ranks import serve

LOOPBACK = Place("127.0.0.1", "lo")
EXACT = sorted(set(SCHEMES) - {"ideal"})


def served(tmp_path: Path, world: int, **told: Any) -> list[dict[str, Any]]:
    told = {"layers": 3, "experts": 4, "sizes": [8] * 5} | told
    return run_ranks(serve, [LOOPBACK] * world, tmp_path, 120.0, **told)


def assert_same_answers(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert result["difference"] <= 1e-10
    assert max(result["largest"] for result in results) > 0.1


@pytest.mark.parametrize("scheme", EXACT)
def test_every_scheme_gives_the_models_answers(tmp_path: Path, scheme: str) -> None:
    assert_same_answers(served(tmp_path, 3, scheme=scheme))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_any_number_of_ranks_gives_the_models_answers(tmp_path: Path, world: int) -> None:
    assert_same_answers(served(tmp_path, world))
