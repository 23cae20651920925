"""Figures of zones under the auction policy."""
