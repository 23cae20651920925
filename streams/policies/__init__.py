"""The policies of zones: one package per policy."""
