"""Service that answers cells' requests for long solves on Kafka."""
