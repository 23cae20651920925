"""What is asked of a cell: arrivals, taken from real traces or generated like them, and the bids drawn for them."""
