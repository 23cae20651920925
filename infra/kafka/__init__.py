"""A Kafka broker where no cluster is given: the jars, the local process, the Docker container."""
