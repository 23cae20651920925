"""Simulated fine-tuning: how jobs learn alone and merged, and a runner that reports as if it trained."""
