"""Tables of settings in the pages of policies, services and runners."""

import re
from collections.abc import Mapping

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from executors.elastic.settings import ElasticSettings
from executors.lora.slots.settings import LoraSettings
from executors.moe.settings import MoeSettings
from executors.node.settings import ExecutorSettings
from executors.tuner.settings import TunerSettings
from infra.kafka.settings import BrokerSettings
from infra.lender.service import LenderSettings
from schemas.auction.settings import PdftspPolicy
from schemas.elastic.settings import ElasticPolicy
from schemas.experts.settings import ExpertsPolicy
from schemas.kafka_connection import KafkaConnection
from schemas.kind import PolicySettings
from schemas.service_base import ServiceSettings
from streams.solver.service import SolverSettings
from streams.worker.settings import WorkerSettings
from tests.docs.markdown import DOCS, table_after

OF_EVERY_SERVICE = {*ServiceSettings.model_fields, "session_timeout_s", "heartbeat_s"}
"""Settings that the page of solvers leaves to that of workers."""


@pytest.mark.parametrize(
    ("page", "policy"),
    [("auction/pdftsp.md", PdftspPolicy), ("elastic.md", ElasticPolicy), ("experts.md", ExpertsPolicy)],
)
def test_settings_and_defaults(page: str, policy: type[PolicySettings]) -> None:
    settings = table_after((DOCS / page).read_text(encoding="utf-8"), "## Settings")
    fields = {name: field for name, field in policy.model_fields.items() if name != "kind"}
    assert settings == {name: written(field) for name, field in fields.items()}


@pytest.mark.parametrize(
    ("page", "heading", "model", "elsewhere"),
    [
        ("streams.md", "## Settings", WorkerSettings, {"validate_cells"}),
        ("streams/solver.md", "## Settings", SolverSettings, OF_EVERY_SERVICE),
        ("executors/settings.md", "## The node", ExecutorSettings, set()),
        ("executors/settings.md", "## The runner lora", LoraSettings, set()),
        ("executors/settings.md", "## The runner tuner", TunerSettings, set()),
        ("executors/settings.md", "## The runner moe", MoeSettings, set()),
        ("elastic-runner.md", "## Settings", ElasticSettings, set()),
        ("lender.md", "## Running it", LenderSettings, set(ServiceSettings.model_fields)),
        ("broker.md", "## Settings", BrokerSettings, set()),
    ],
)
def test_variables_and_defaults(page: str, heading: str, model: type[BaseModel], elsewhere: set[str]) -> None:
    rows = split(table_after((DOCS / page).read_text(encoding="utf-8"), heading))
    fields = {
        name.removeprefix("lender_"): field
        for name, field in model.model_fields.items()
        if name not in KafkaConnection.model_fields
    }
    assert set(fields) - elsewhere <= set(rows)
    assert set(rows) - {"bootstrap_servers", "kafka_*", "validate"} <= set(fields)
    for name, default in rows.items():
        match fields[name].default if name in fields else None:
            case bool(value):
                assert default == str(value).lower(), name
            case int(value) | float(value):
                assert float(default.replace(",", "")) == value, name
            case str(value):
                assert default == value, name


def split(table: Mapping[str, str]) -> dict[str, str]:
    """Return a table with one name in each row, in lower case; names with one default each have theirs."""
    rows = {}
    for names, defaults in table.items():
        each = [name.removeprefix("MILLRACE_").lower() for name in re.findall(r"[A-Z_*]+", names)]
        values = defaults.split(", ") if len(defaults.split(", ")) == len(each) else [defaults] * len(each)
        rows.update({name: value.strip("`") for name, value in zip(each, values, strict=True)})
    return rows


def written(field: FieldInfo) -> str:
    """Return a default as pages write it."""
    match field.default:
        case value if value is PydanticUndefined:
            return "required" if field.default_factory is None else "by other settings"
        case bool(value):
            return str(value).lower()
        case int(value) | float(value):
            return f"{value:,g}"
        case None | ():
            return "none"
        case value:
            return str(value)
