"""Files that people write: bids and quotes."""
