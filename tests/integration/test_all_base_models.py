"""All of docs/results/base-models.md: two minutes of CPU time."""

import pytest

from tests.support.base_models.document import PATH, verdicts
from tests.support.base_models.survey import architectures, survey


@pytest.mark.drill
@pytest.mark.timeout(3_600)
def test_every_architecture_has_the_verdict_of_the_page() -> None:
    expected = verdicts(PATH.read_text(encoding="utf-8"))
    found = {(row.task, row.model_type): (row.verdict, row.reason) for row in survey(architectures())}
    assert {key: each for key, each in found.items() if each != expected.get(key)} == {}
    assert found.keys() == expected.keys()
