"""Displays of a log: folds of its events and decisions, and how they are shown."""
