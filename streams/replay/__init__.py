"""Proof of a log: the ledger folded again, and every decision compared."""
