"""Displays of zones under the elastic policy."""
