"""Bids drawn for the arrivals of a workload: the properties of an auction's jobs that no trace records."""
