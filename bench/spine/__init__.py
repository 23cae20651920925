"""`millrace bench spine`: what a decision costs, alone and through Kafka, and what fused training gains."""
