"""Answers cells' requests for long solves on Kafka."""
