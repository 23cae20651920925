"""A Kafka broker for use without a cluster: the jars, the local process, the Docker container."""
