"""Problem P in hindsight: its optimum, bounds on it, and near-optimal plans."""
