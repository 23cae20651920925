"""The demo: a whole deployment on one machine, forty bids, a crash on the way, and the proof at the end."""
