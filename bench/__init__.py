"""How good it is: benchmarks with their workloads, figures and performance gates."""
