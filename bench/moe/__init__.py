"""`millrace bench moe`: adaptive gating, and Lina in training and inference."""
