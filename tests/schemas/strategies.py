"""Hypothesis strategies built from the JSON Schemas of the models, and thus from the models themselves."""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from schemas.elastic.settings import MAX_SLOWNESS
from schemas.merging.commands import JOBS_PER_MODE
from schemas.registry import DECISION_TYPES, EVENT_TYPES

SEEDED = settings(
    derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.filter_too_much]
)
"""Derandomised: equal examples on every run and machine. Most drawn whole configurations are refused by rules
between their fields, which schemas do not state."""

MODELS: dict[str, Any] = {**EVENT_TYPES, **DECISION_TYPES}
_YEAR_S = 365 * 86_400
PRINTABLE = st.text(min_size=1, max_size=40).filter(str.isprintable)


def instances(schema: dict[str, Any], document: dict[str, Any] | None = None) -> st.SearchStrategy[Any]:
    """JSON values that are valid under a schema, of the keywords that the models' schemas use."""
    document = schema if document is None else document
    if "$ref" in schema:
        return instances(document["$defs"][schema["$ref"].removeprefix("#/$defs/")], document)
    if "const" in schema or "enum" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    if alternatives := schema.get("anyOf", schema.get("oneOf")):
        return st.one_of([instances(branch, document) for branch in alternatives])
    match schema["type"]:
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(schema.get("minimum"), schema.get("maximum"))
        case "number":
            return _numbers(schema)
        case "string":
            return _strings(schema)
        case "array" if "prefixItems" in schema:
            return st.tuples(*(instances(item, document) for item in schema["prefixItems"])).map(list)
        case "array":
            least = schema.get("minItems", 0)
            # Short, or a whole configuration of a cell is more than an example may hold.
            most = min(schema.get("maxItems", least + 1), least + 1)
            unique = schema.get("uniqueItems", False)
            return st.lists(
                instances(schema["items"], document), min_size=least, max_size=most, unique=unique
            )
        case "object":
            return _objects(schema, document)
    raise NotImplementedError(f"no strategy for {schema}")


def _numbers(schema: dict[str, Any]) -> st.SearchStrategy[float]:
    return st.floats(
        schema.get("minimum", schema.get("exclusiveMinimum")),
        schema.get("maximum", schema.get("exclusiveMaximum")),
        exclude_min="exclusiveMinimum" in schema,
        exclude_max="exclusiveMaximum" in schema,
        allow_nan=False,
        allow_infinity=False,
    )


def _strings(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if "pattern" not in schema:
        return st.text(st.characters(codec="utf-8"), min_size=least, max_size=most)
    texts = st.from_regex(schema["pattern"], fullmatch=True)
    return texts.filter(lambda text: least <= len(text) and (most is None or len(text) <= most))


def _objects(schema: dict[str, Any], document: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    fields = {name: instances(rule, document) for name, rule in schema.get("properties", {}).items()}
    required = set(schema.get("required", ()))
    named = st.fixed_dictionaries(
        {name: values for name, values in fields.items() if name in required},
        optional={name: values for name, values in fields.items() if name not in required},
    )
    patterns = schema.get("patternProperties", {})
    if not patterns:
        return named
    [(pattern, rule)] = patterns.items()
    most = min(3, schema.get("maxProperties", 3))
    return st.dictionaries(st.from_regex(pattern, fullmatch=True), instances(rule, document), max_size=most)


def consistent_zone(zone: dict[str, Any], number: int = 0) -> None:
    """Make a zone obey the rules between its fields, which JSON Schema cannot state."""
    zone["id"] = f"zone-{number}"
    zone["base_model_memory_gib"] = min(zone["base_model_memory_gib"], 4.0)
    for index, gpu in enumerate(zone["gpu_types"]):
        gpu["name"] = f"gpu-{index}"
        gpu["memory_gib"] = max(gpu["memory_gib"], 8.0)
        gpu["samples_per_s"] = max(gpu["samples_per_s"], 100.0)
        gpu["power_kw"] = min(gpu.get("power_kw", 0.0), 1e-5)
    for index, node in enumerate(zone["nodes"]):
        node |= {"id": f"node-{number}-{index}", "gpu_type": "gpu-0", "tariff": "tariff-0"}
    if zone["policy"]["kind"] == "merging":
        zone["gpu_types"] = zone["gpu_types"][:1]
    for row in zone.get("throughput", ()):
        row["gpu_type"] = "gpu-0"
    if "reference_gpu_type" in zone["policy"]:
        zone["policy"]["reference_gpu_type"] = "gpu-0"
        slowest = zone["gpu_types"][0]["samples_per_s"] / zone["gpu_types"][0].get("gpus", 1) / MAX_SLOWNESS
        for gpu in zone["gpu_types"]:
            gpu["samples_per_s"] = max(gpu["samples_per_s"], min(slowest * gpu.get("gpus", 1) * 1.001, 1e9))
    # Lists are short (see above), so each type has at most one forecast.
    for prices in zone["policy"].get("opening_prices", ()):
        prices["gpu_type"] = "gpu-0"


def consistent(configuration: dict[str, Any]) -> dict[str, Any]:
    """A configuration of a cell, or an event about one of its zones, that obeys the rules between fields."""
    for index, tariff in enumerate(configuration.get("tariffs", ())):
        tariff["name"] = f"tariff-{index}"
    if "zone" in configuration:
        consistent_zone(configuration["zone"])
    for number, zone in enumerate(configuration.get("zones", ())):
        consistent_zone(zone, number)
    for zone in configuration.get("zones", ()):
        if zone.get("lending") is not None:
            others = [other["id"] for other in configuration["zones"] if other is not zone]
            zone["lending"] = {**zone["lending"], "borrowers": [{"zone": others[0]}]} if others else None
    if "duplicate_window_events" in configuration:
        configuration["duplicate_window_events"] = min(configuration["duplicate_window_events"], 50_000)
    if "vendors" in configuration:
        configuration["vendors"] = sorted(set(configuration["vendors"]))
    return configuration


def _consistent_tuning(workload: dict[str, Any]) -> None:
    """Accuracy, and whether a merge helps, are measured on validation data; reuse needs sharing."""
    if workload.get("kind") == "tuning":
        if not workload.get("sharing", True):
            workload.pop("reusable", None)
        workload["validation_path"] = workload.get("validation_path") or "validation.jsonl"


def _consistent_orders(event: dict[str, Any]) -> None:
    """A task has as many jobs as its mode merges."""
    orders = event.get("orders", [event["order"]] if "order" in event else [])
    for order in orders:
        _consistent_tuning(order["workload"])
    if "orders" in event:
        event["orders"] = (orders * 2)[: JOBS_PER_MODE[event["mode"]]]


def _consistent_shares(solution: dict[str, Any]) -> None:
    """A share has as many jobs as its mode merges, and no job is in two."""
    for number, share in enumerate(solution.get("shares", ())):
        count = JOBS_PER_MODE[share["mode"]]
        share["job_ids"] = [f"job-{number}-{index}" for index in range(count)]


def _consistent_merge(problem: dict[str, Any]) -> None:
    """Units and transfers name kinds that are there, and kinds and jobs tables."""
    if "step_tables" in problem:
        for one in (*problem.get("kinds", ()), *problem.get("jobs", ())):
            one["step_table"] %= len(problem["step_tables"])
    if problem.get("kind") == "merge":
        for unit in problem["units"]:
            unit["kind"] %= len(problem["kinds"])
        for transfer in problem.get("transfers", ()):
            transfer["donor"] %= len(problem["kinds"])
            transfer["receiver"] %= len(problem["kinds"])


def _consistent_moe(event: dict[str, Any]) -> None:
    """Layers have equally many experts, and jobs enough samples and experts for their ranks and devices."""
    for layer in event.get("layers", ()):
        if "tokens" in layer:
            first = event["layers"][0]["tokens"]
            layer["tokens"] = (layer["tokens"] + first)[: len(first)]
            layer["doubles"] = min(layer.get("doubles", 0), sum(layer["tokens"]) // 2)
    workload = event.get("workload", {})
    if workload.get("kind") == "moe-train":
        hyperparameters = workload.setdefault("hyperparameters", {})
        batch = hyperparameters.get("global_batch_size", 0)
        hyperparameters["global_batch_size"] = max(batch, workload.get("ranks", 1))
        if workload.get("conversion") and workload.get("experts_per_device"):
            workload["experts_per_device"] = min(
                workload["experts_per_device"], workload["conversion"]["experts"]
            )
    gating = workload.get("gating", {})
    if gating.get("mode") == "adaptive":
        gating["threshold"] = gating.get("threshold") or 0.0
    else:
        for name in ("threshold", "threshold_on"):
            gating.pop(name, None)


def _consistent_profile(event: dict[str, Any]) -> None:
    """Let steps be possible, points differ, and sequences be as long as their key."""
    points = event.get("points") if "key" in event else None
    for point in [*(points or []), *filter(None, [event.get("measured")])]:
        point.update(step_s=max(point["step_s"], 1.0), micro_batch_size=1, tokens_per_sample=1.0)
        if "samples_per_step" in point:
            point["samples_per_step"] = 1
        if "exchange_s" in point:
            point["exchange_s"] = min(point["exchange_s"], point["step_s"])
        if point.get("gpus", 1) < point.get("nodes", 1):
            point["gpus"] = point["nodes"]
    if points:
        event["points"] = points[:1]
        length = event["key"]["sequence_tokens"]
        event["key"]["sequence_tokens"] = 1 << length.bit_length() - 1
        event["key"]["target_modules"] = sorted(event["key"]["target_modules"])


def _consistent_elastic(workload: dict[str, Any]) -> None:
    """A batch has a sample for each worker, and a job agent's bounds contain the job's own values."""
    fewest = workload.get("min_workers", 1)
    workload["max_workers"] = max(workload.get("max_workers", 1), fewest)
    workload.pop("speedup", None)
    hyperparameters = workload.setdefault("hyperparameters", {})
    batch = hyperparameters.get("global_batch_size", 0)
    hyperparameters["global_batch_size"] = max(batch, workload["max_workers"])
    # Any speed will do, with work that takes a year; without one, any work.
    if workload.get("samples_per_s") is not None:
        workload["samples_per_s"] = max(workload["samples_per_s"], 1e-6)
        most_samples = max(int(workload["samples_per_s"] * _YEAR_S), 1)
        workload["work_samples"] = min(workload["work_samples"], most_samples)
    if tuning := workload.get("tuning"):
        batch, least = hyperparameters["global_batch_size"], tuning["least_global_batch_size"]
        tuning["least_global_batch_size"] = min(max(least, workload["max_workers"]), batch)
        tuning["most_global_batch_size"] = max(tuning["most_global_batch_size"], batch)
        rate = hyperparameters.get("learning_rate", 1e-4)
        tuning["most_learning_rate"] = max(tuning["most_learning_rate"], rate)
        if tuning.get("least_learning_rate") is not None:
            tuning["least_learning_rate"] = min(tuning["least_learning_rate"], rate)


def _consistent_job(event: dict[str, Any]) -> dict[str, Any]:
    """An event or a command about a job whose workload obeys the rules between its fields."""
    _consistent_orders(event)
    _consistent_shares(event.get("solution") or {})
    _consistent_merge(event.get("problem", {}))
    workload = event.get("workload", {})
    _consistent_tuning(workload)
    _consistent_moe(event)
    _consistent_profile(event)
    if workload.get("kind") == "elastic":
        _consistent_elastic(workload)
    return event


def _has_a_whole_adapter(finished: dict[str, Any]) -> bool:
    return (finished.get("adapter_path") is None) == (finished.get("adapter_digest") is None)


_CONFIGURATIONS = ("millrace.cell.configured.v1", "millrace.zone.configured.v1")


def payloads(ce_type: str) -> st.SearchStrategy[dict[str, Any]]:
    """JSON objects that the model of this type accepts, defaults sometimes left out."""
    values = instances(MODELS[ce_type].model_json_schema())
    if ce_type == "millrace.run.finished.v1":
        return values.filter(_has_a_whole_adapter)
    return values.map(consistent if ce_type in _CONFIGURATIONS else _consistent_job)
