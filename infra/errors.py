"""The error that ends a command."""


class CommandError(Exception):
    """A command cannot do what it was asked to. The message is one line that says why, and what to do."""
