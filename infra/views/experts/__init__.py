"""Displays of zones under the experts policy."""
