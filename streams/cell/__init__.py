"""One cluster: the state machine that turns its ledger into decisions."""
