"""The suite `spine`: the path of a bid through Kafka and a cell. Quiet parts come first."""

from typing import Any

from bench.suite import Part, Suite, by_size

SUITE: Suite[None, Any, Any] = Suite(
    parts=(
        Part("decisions", by_size("bench.spine.decide:measure_decide")),
        Part("records", by_size("bench.spine.records:measure_records")),
        Part("slow bids", by_size("bench.spine.slow_bids:measure_slow_bids")),
        Part("slow events", by_size("bench.spine.slow_events:measure_slow_events")),
        Part("setbacks", by_size("bench.spine.decide:measure_setbacks")),
        Part("Kafka", by_size("bench.spine.kafka:measure_kafka")),
        # Its figures have no goals, and it needs a broker of its own.
        Part(
            "secured Kafka",
            by_size("bench.spine.kafka:measure_secured_kafka"),
            applies=lambda conditions: not conditions.quick,
        ),
        Part("recovery", by_size("bench.spine.recovery:measure_recovery")),
        Part("flood", by_size("bench.spine.flood:measure_flood")),
        Part("idle fleet", by_size("bench.spine.idle:measure_idle")),
        Part("fused training", by_size("bench.spine.fused:measure_fused_training")),
    ),
    scope=lambda _: None,
)
