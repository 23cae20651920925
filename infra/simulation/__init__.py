"""A cell on virtual time: the same state machine as on Kafka, with simulated executors."""
