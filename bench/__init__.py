"""What it is worth: simulator, workloads, figures and performance gates."""
