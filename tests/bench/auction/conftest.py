"""What tests of the auction's benchmark share."""

import pytest
from pydantic import ValidationError

from bench.auction.runs import contenders
from bench.workloads.paper import PaperSetting, draw


@pytest.fixture
def default_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The contender `default`; a declared auction in its place while one without bounds is refused."""
    try:
        contenders.default_policy()
    except ValidationError:
        declared = draw(PaperSetting(), 0)[0].zones[0].policy
        monkeypatch.setattr(contenders, "default_policy", lambda: declared)
