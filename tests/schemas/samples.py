"""One small valid payload of a few types."""

from typing import Any

SUBMITTED: dict[str, Any] = {
    "cell": "cell-1",
    "job_id": "job-1",
    "user": "ada",
    "zone": "zone-1",
    "workload": {
        "kind": "lora",
        "work_samples": 12_000,
        "dataset": {"path": "ada/reviews.jsonl", "samples": 4_000},
        "speed_samples_per_s": {"a100": 40.0},
    },
    "terms": {"kind": "bid", "bid_micros": 2_500_000, "deadline_s": 86_400.0},
}
TICKED: dict[str, Any] = {"cell": "cell-1", "time_s": 600.0}
CONFIGURED: dict[str, Any] = {
    "cell": "cell-1",
    "epoch_s": 0.0,
    "tariffs": [{"name": "flat", "micros_per_kwh": [120_000] * 24}],
    "zones": [
        {
            "id": "zone-1",
            "base_model": "llama-7b",
            "base_model_memory_gib": 14.0,
            "gpu_types": [{"name": "a100", "samples_per_s": 40.0, "memory_gib": 80.0, "power_kw": 0.4}],
            "nodes": [{"id": "node-1", "gpu_type": "a100", "tariff": "flat"}],
            "policy": {
                "kind": "pdftsp",
                "money_unit_micros": 1_000,
                "max_value_per_compute_micros": 1_000_000,
                "max_value_per_memory_micros": 1_000_000,
            },
        }
    ],
    "vendors": ["label-co"],
}
IGNORED: dict[str, Any] = {"reason": "unknown_job", "facts": {"job_id": "job-9"}}
