"""A real network: processes in network namespaces, joined by links of a stated rate."""
