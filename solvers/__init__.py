"""What to decide: pure algorithms and Pyomo models. No Kafka, no clock, no global random state, no I/O."""
