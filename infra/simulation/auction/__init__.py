"""What simulations do with auctions alone: other policies of their family, and forecasts of their prices."""
