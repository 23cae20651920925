"""A deployment on one machine: broker, topics, worker, executors and clock, in their order, ended together."""
