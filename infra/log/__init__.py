"""The log from outside: events sent to it, and what it holds read back."""
