"""Runs behind the tables: settings, contenders, checks, and storage so that no run is repeated."""
