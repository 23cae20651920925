"""A model of a cell and its nodes on virtual time, with kills, losses, repeats, delays and reorderings.

The cell is the real one. A node is the real node service with its journal, its checks of commands and its
runner; only its worker processes are replaced by light ones, which train nothing.
"""
