"""Access to the log from outside: sending events and reading records."""
