"""Rank processes of mixture-of-experts jobs: how they are ordered, meet, are told, and end.

What a rank does between is its job kind's: see `kinds`.
"""
