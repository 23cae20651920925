"""pdFTSP's rules (Algorithms 1 and 2): plans, prices, outcomes of bids and the certificate."""
