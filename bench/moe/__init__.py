"""`millrace bench moe`: adaptive gating, and Lina in training and inference (thesis, chapters 4 and 5)."""
