"""Posted prices for each slot and class of nodes, which follow sales."""
