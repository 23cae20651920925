"""Displays of zones under the auction and its baselines."""
