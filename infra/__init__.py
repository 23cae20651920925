"""How to run it all: broker, topics, command line, deployment, simulation and displays."""
