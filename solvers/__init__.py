"""Algorithms of decisions: pure functions and Pyomo models. No Kafka, clock, global random state or I/O."""
