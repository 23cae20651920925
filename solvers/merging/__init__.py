"""Ymir: how far fine-tuning jobs are from their targets, which of them help each other, and who gets GPUs
(Gao et al., ICS '24)."""
