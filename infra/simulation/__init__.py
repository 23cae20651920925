"""A cell on virtual time: the very state machine that runs on Kafka, with executors that only count."""
