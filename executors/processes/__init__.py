"""Processes that are forked from a server which has imported torch."""
