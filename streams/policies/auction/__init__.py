"""A zone under the auction policy: bids, plans, slots, runs and nodes."""
