"""The file with the sample paths of a model's training: what is read of it, and what is refused."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save
from safetensors.torch import save as save_tensors

from executors.moe.conversion.sample_paths import SAMPLE_PATHS, bounded_profile, file_of_paths, read_paths
from solvers.experts.paths import PathProfile
from tests.support.examples import examples

ROUTERS = b"weights"
SIZE = {"experts": 3, "layers": 4, "length": 3}


def profile() -> PathProfile:
    paths = bounded_profile(**SIZE)
    paths.add(np.array([[0, 1, 2, 0]] * 6 + [[1, 1, 2, 1]] * 4))
    return paths


def listed(paths: PathProfile | None) -> dict[str, list[int]]:
    assert paths is not None
    return {name: array.tolist() for name, array in paths.arrays().items()}


def as_halves() -> bytes:
    """A file whose counts are of a type that numpy lacks."""
    tensors = {name: torch.from_numpy(array).bfloat16() for name, array in profile().arrays().items()}
    return save_tensors(tensors, metadata())


def metadata() -> dict[str, str]:
    """Return the metadata of a file of the model."""
    content = file_of_paths(profile(), ROUTERS)
    size = int.from_bytes(content[:8], "little")
    found: dict[str, str] = json.loads(content[8 : 8 + size])["__metadata__"]
    return found


def test_paths_of_model_are_read_back(tmp_path):
    (tmp_path / SAMPLE_PATHS).write_bytes(file_of_paths(profile(), ROUTERS))
    assert listed(read_paths(tmp_path, ROUTERS, **SIZE)) == listed(profile())
    shorter = read_paths(tmp_path, ROUTERS, 3, 4, length=2)
    assert listed(shorter) == listed(profile().shortened(2))


def test_model_without_file_has_no_paths(tmp_path):
    assert read_paths(tmp_path, ROUTERS, **SIZE) is None


@pytest.mark.parametrize(
    ("content", "asked", "why"),
    [
        (file_of_paths(profile(), b"others"), SIZE, "is of a model with other routers"),
        (file_of_paths(profile(), ROUTERS), {**SIZE, "layers": 5}, "has other tables than those of 5 layers"),
        (file_of_paths(profile(), ROUTERS), {**SIZE, "experts": 2}, "table 0.0 has shapes"),
        (file_of_paths(profile(), ROUTERS), {**SIZE, "length": 5}, "its paths have 3 layers, fewer than 5"),
        (file_of_paths(profile(), ROUTERS)[:-1], SIZE, "sample_paths.safetensors: "),
        (b"", SIZE, "sample_paths.safetensors: "),
        (b"{}" * 40, SIZE, "sample_paths.safetensors: "),
        (save(profile().arrays()), SIZE, "is of a model with other routers"),
        (as_halves(), SIZE, "sample_paths.safetensors: "),
        (bytes(33 * 2**20), SIZE, "has 34603008 bytes, more than 33554432"),
    ],
    ids=["model", "layers", "experts", "length", "short", "empty", "noise", "unnamed", "halves", "large"],
)
def test_unusable_files_are_refused(tmp_path, content, asked, why):
    (tmp_path / SAMPLE_PATHS).write_bytes(content)
    with pytest.raises(ValueError, match=f"^{SAMPLE_PATHS}: .*|{why}") as refused:
        read_paths(tmp_path, ROUTERS, **asked)
    assert why in str(refused.value)


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_a_damaged_file_is_read_or_refused(tmp_path_factory, data):
    content = bytearray(file_of_paths(profile(), ROUTERS))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    folder = tmp_path_factory.mktemp("model")
    (folder / SAMPLE_PATHS).write_bytes(bytes(content))
    try:
        paths = read_paths(folder, ROUTERS, **SIZE)
    except ValueError:
        return
    assert paths is not None
    assert min(array.min() for array in paths.arrays().values()) >= 0


@given(st.integers(1, 256), st.integers(1, 256), st.integers(1, 7))
def test_profiles_of_any_model_are_bounded(experts, layers, length):
    paths = bounded_profile(experts, layers, length)
    tables = sum(map(len, paths.tables))
    assert 1 <= paths.most_paths <= 1_024
    assert paths.most_paths == 1 or tables * experts * paths.most_paths <= 2**20
