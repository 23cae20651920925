"""Figures of a cell, folded from its log: a timeline per job and one per zone."""
