"""When to decide it: the cell (a state machine) and the Faust processors around it."""
