"""Elastic scheduling (Lyra; thesis, chapter 3): how many workers each job has, where, and who gives way."""
