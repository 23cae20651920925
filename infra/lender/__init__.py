"""The lender: forecasts how loaded servers will be, and offers and reclaims them (thesis, chapter 3)."""
