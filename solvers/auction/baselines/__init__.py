"""Baselines to which the auction is compared (section 5.1)."""
