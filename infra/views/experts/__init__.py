"""How zones of the experts policy are shown."""
