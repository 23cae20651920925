"""The policy `elastic`: data-parallel jobs whose numbers of workers change (Lyra; thesis, chapter 3)."""
