"""Simulation of a cell on virtual time: the state machine of Kafka's worker, with simulated executors."""
