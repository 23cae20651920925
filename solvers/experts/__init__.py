"""Where the experts of a mixture-of-experts layer are placed, by popularity (thesis, chapter 4: Lina)."""
