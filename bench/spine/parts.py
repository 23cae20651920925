"""The suite `spine`: the path of a bid through Kafka and a cell. Quiet parts come first."""

from typing import Any

from bench.suite import Suite, SuitePart, by_size

SUITE: Suite[None, Any, Any] = Suite(
    parts=(
        SuitePart("decisions", by_size("bench.spine.decide:measure_decide")),
        SuitePart("records", by_size("bench.spine.decide:measure_records")),
        SuitePart("slow bids", by_size("bench.spine.slow_bids:measure_slow_bids")),
        SuitePart("slow events", by_size("bench.spine.slow_events:measure_slow_events")),
        SuitePart("curves", by_size("bench.spine.curves:measure_curves")),
        SuitePart("setbacks", by_size("bench.spine.decide:measure_setbacks")),
        SuitePart("Kafka", by_size("bench.spine.kafka:measure_kafka")),
        SuitePart("recovery", by_size("bench.spine.recovery:measure_recovery")),
        SuitePart("flood", by_size("bench.spine.flood:measure_flood")),
        SuitePart("idle fleet", by_size("bench.spine.recovery:measure_idle")),
        SuitePart("fused training", by_size("bench.spine.fused:measure_fused_training")),
    ),
    scope=lambda _: None,
)
