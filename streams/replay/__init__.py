"""Verification of a log: decisions are recomputed from the ledger and compared."""
