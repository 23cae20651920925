"""Benchmarks of merging fine-tuning jobs, on measured training curves and step times."""
