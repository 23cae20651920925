"""The proof that a base model computes in packed batches what transformers computes for each sequence alone.

`prove` runs when a base is loaded. It compares passes of the real model, so it needs no list of valid
architectures.
"""
