"""`millrace bench spine`: the cost of a decision, alone and through Kafka, and the gain of fused training."""
