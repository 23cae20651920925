"""What travels for the auction and its baselines alone: settings, terms, evidence, vendors."""
