"""Builders, invariants and process helpers that the tests share."""
