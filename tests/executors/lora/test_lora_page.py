"""The code that docs/lora-engine.md shows runs."""

import re
from pathlib import Path

import pytest

from tests.support.executors import write_dataset

PAGE = Path(__file__).parents[3] / "docs" / "lora-engine.md"


def test_the_first_example(llama_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "my-llama").symlink_to(llama_directory)
    (tmp_path / "datasets").mkdir()
    for name in ("a", "b"):
        write_dataset(tmp_path / "datasets" / f"{name}.jsonl")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(code, names)
    assert names["losses"].keys() == {"first", "second"}  # type: ignore[attr-defined]
    assert names["engine"].job_ids == ("first", "second")  # type: ignore[attr-defined]
    assert list((tmp_path / "checkpoints" / "first").iterdir())
