"""Tables of settings in the pages of policies."""

import pytest
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from schemas.auction.settings import AuctionPolicy
from schemas.elastic.settings import ElasticPolicy
from schemas.kind import PolicySettings
from tests.docs.markdown import DOCS, table_after


@pytest.mark.parametrize(("page", "policy"), [("auction.md", AuctionPolicy), ("elastic.md", ElasticPolicy)])
def test_settings_and_defaults(page: str, policy: type[PolicySettings]) -> None:
    settings = table_after((DOCS / page).read_text(encoding="utf-8"), "## Settings")
    fields = {name: field for name, field in policy.model_fields.items() if name != "kind"}
    assert settings == {name: written(field) for name, field in fields.items()}


def written(field: FieldInfo) -> str:
    """Return a default as pages write it."""
    match field.default:
        case value if value is PydanticUndefined:
            return "required"
        case bool(value):
            return str(value).lower()
        case int(value) | float(value):
            return f"{value:,g}"
        case None | ():
            return "none"
        case value:
            return str(value)
