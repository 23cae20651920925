"""The configuration, connection and checks of every Kafka client."""
