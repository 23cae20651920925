"""Workloads of a cell: arrivals, from real traces or generated like them, and jobs drawn for them."""
