"""How the merging policy is shown."""
