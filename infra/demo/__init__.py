"""The demo: a whole deployment on one machine, forty bids, a crash, a loan, and a replay at the end."""
