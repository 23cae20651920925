"""Benchmarks of the auction against its baselines, the offline optimum and its published form (section 5 of
its paper)."""
