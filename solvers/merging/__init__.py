"""Ymir: estimates of fine-tuning jobs, merges of jobs that help each other, and allocation of GPUs (Gao et
al., ICS '24)."""
