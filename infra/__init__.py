"""How it is run: broker, topics, command line, console, deployment, metrics."""
