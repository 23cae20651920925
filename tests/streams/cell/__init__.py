"""The cell as a state machine: events in, decisions out. Invariants are checked after every event."""
