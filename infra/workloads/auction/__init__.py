"""Bids drawn for the arrivals of a workload: what a trace does not say of an auction's jobs."""
