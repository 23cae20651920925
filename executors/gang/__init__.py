"""Gangs on nodes: a gang is a job's set of processes over nodes, in one generation."""
