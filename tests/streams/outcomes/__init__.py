"""Recorded decisions of every policy about some thousand bids, which no restructuring may change."""
