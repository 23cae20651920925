"""`millrace bench testbed`: simulations held against deployments of throttled executors that train."""
