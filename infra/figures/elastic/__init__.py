"""Figures of zones under the elastic policy."""
