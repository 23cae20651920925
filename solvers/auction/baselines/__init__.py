"""The baselines that the auction is compared with (section 5.1)."""
