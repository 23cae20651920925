"""Jobs that are sets of processes over nodes: what elastic, experts and merging zones have in common."""
