"""The commands, one module each. A module imports at its head only what `millrace --help` can wait for."""
