"""Jobs that are sets of processes, under no policy in particular."""
