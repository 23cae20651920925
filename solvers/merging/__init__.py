"""Ymir (Gao et al., ICS '24): estimates of fine-tuning jobs, merges of jobs, and allocation of GPUs."""
