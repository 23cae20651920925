"""Displays of zones under the merging policy."""
