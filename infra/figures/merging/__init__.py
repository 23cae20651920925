"""Figures of zones under the merging policy."""
