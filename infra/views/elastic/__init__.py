"""How the elastic policy is shown."""
