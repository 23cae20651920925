"""The types of the auction and its baselines: settings, terms, evidence, vendors."""
