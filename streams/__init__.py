"""Streams of events and decisions: the cell (a state machine), and the Faust processors around it."""
