"""What every policy decided about some thousand bids, as it was recorded; no rebuilding may change it."""
