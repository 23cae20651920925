"""Merging measured: what its estimator foretells and what its schedules are worth, on real learning
curves."""
