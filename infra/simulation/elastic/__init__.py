"""The simulated runner of elastic jobs."""
