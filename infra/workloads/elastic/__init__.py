"""Workloads of elastic zones: data-parallel jobs, and the load of the inference servers next to them."""
