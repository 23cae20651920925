"""Algorithms that more than one of the systems use."""
