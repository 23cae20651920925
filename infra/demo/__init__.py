"""The demo: a whole deployment on one machine, forty bids, a crash in between, and a replay at the end."""
