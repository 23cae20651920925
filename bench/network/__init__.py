"""A network that is real: processes in network namespaces, joined by links of a stated rate."""
