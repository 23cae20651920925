"""What adaptive gating is worth (thesis, chapter 5), and what its experts cost."""
