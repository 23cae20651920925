"""The worker process: intake and cells on Kafka, by Faust."""
