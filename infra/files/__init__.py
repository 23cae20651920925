"""Files that users write: bids and quotes."""
