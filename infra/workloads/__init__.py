"""Workloads of a cell: arrivals, from real traces or generated like them, and bids drawn for them."""
