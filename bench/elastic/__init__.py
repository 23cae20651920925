"""`millrace bench elastic`: loans, reclaims and elastic jobs, beside the figures of the thesis."""
