"""The auction against its rivals, the offline optimum and its own published form (section 5 of its paper)."""
