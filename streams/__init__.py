"""When it is decided: the cell (a state machine) and the Faust processors around it."""
