"""Training of a mixture-of-experts model over ranks: each trains its share of a batch, and hosts a part of
the experts (thesis, chapter 4), with adaptive gating and a curriculum (chapter 5).
"""
