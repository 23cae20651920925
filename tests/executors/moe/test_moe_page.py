"""Examples of docs/moe.md run, and files that it names exist."""

import json
import re
from pathlib import Path

import yaml

from schemas.experts.workload import ExpertsTerms, MoeServeWorkload, MoeTrainWorkload
from solvers.experts.schemes import SCHEMES

ROOT = Path(__file__).parents[3]
PAGE, POLICY_PAGE = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("moe.md", "experts.md"))


def test_the_code_of_the_page_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    assert [tuple(ratios.shape) for ratios in names["doubles"]] == [(2,), (2,)]  # type: ignore[attr-defined]


def test_page_names_all_schemes_and_modules() -> None:
    named = {
        name
        for row in re.findall(r"^\| (`.*?) \|", PAGE + POLICY_PAGE, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert set(SCHEMES) <= named
    for path in re.findall(r"`((?:executors|solvers)/[^`]*)`", PAGE):
        assert (ROOT / path).exists(), path


def test_the_jobs_of_the_page_are_some() -> None:
    trains, serves = (yaml.safe_load(text)[0] for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
    trained = MoeTrainWorkload.model_validate_json(json.dumps(trains["workload"]))
    served = MoeServeWorkload.model_validate_json(json.dumps(serves["workload"]))
    assert (trained.gating.mode, served.gating.mode) == ("adaptive", "top1")
    for job in (trains, serves):
        ExpertsTerms.model_validate_json(json.dumps(job["terms"]))
