"""Zones of data-parallel jobs whose workers come and go (Lyra; thesis, chapter 3)."""
