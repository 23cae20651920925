"""How a zone decides: one package per policy."""
