"""`millrace bench elastic`: elastic scheduling, loans and reclaims (thesis, chapter 3)."""
