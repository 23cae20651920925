"""Problem P in hindsight: its optimum, bounds on it, and plans near it."""
