"""Placement of the experts of a mixture-of-experts layer by popularity (thesis, chapter 4: Lina)."""
