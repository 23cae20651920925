"""One Kafka broker for whoever brings none: the jars, the local process, the Docker container."""
