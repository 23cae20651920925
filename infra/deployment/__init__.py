"""A deployment on one machine: topics, worker, executors and clock, started in order and stopped together."""
