"""Elastic scheduling (Lyra; thesis, chapter 3): number and placement of workers, and reclaimed servers."""
