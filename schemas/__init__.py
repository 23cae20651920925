"""All records on Kafka: events, decisions and commands as frozen Pydantic models; the topics; the codec."""
