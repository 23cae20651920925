"""A ledger that is committed with the chain that it gives: decisions change on purpose only."""
