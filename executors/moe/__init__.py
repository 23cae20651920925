"""Mixture-of-experts layers with adaptive gating (thesis, chapter 5), and models that have them."""
