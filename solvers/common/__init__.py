"""Algorithms that more than one policy uses."""
