"""Verification of a log: decisions are computed again from the ledger and compared."""
