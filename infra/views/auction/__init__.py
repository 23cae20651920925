"""How zones under the auction and its baselines are shown."""
