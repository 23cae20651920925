"""Prices that find themselves: posted for each slot and class of nodes, and moved by what is sold."""
