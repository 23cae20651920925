"""Figures of zones under the experts policy."""
