"""Situations in which one event takes a cell long: by policy, drawn from a seed."""
