"""`millrace bench elastic`: elastic scheduling and loans (thesis, chapter 3)."""
