"""pdFTSP's rules (Algorithms 1 and 2): plans, prices, verdicts and the certificate."""
