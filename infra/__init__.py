"""Tools to run Millrace: broker, topics, command line, deployment, simulation and displays."""
