"""The benchmark of elastic scheduling, loans and reclaims, and of their forecasts."""
