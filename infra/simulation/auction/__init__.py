"""Simulations specific to auctions: other policies of their family, and forecasts of their prices."""
