"""The lender: forecasts loads of servers, offers servers and reclaims them (thesis, chapter 3)."""
