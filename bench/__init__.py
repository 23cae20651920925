"""Benchmarks, with their workloads, figures and performance gates."""
