"""How it travels: every client of Kafka is configured, connected and asked here."""
