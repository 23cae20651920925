"""The auction against its baselines, the offline optimum and its own published form (section 5 of its
paper)."""
