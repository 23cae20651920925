"""Simulated fine-tuning: learning curves of jobs alone and merged, and a runner that reports without
training."""
