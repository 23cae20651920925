"""The policy `merging`: profile, foretell, merge and allocate fine-tuning jobs of one base model (Ymir)."""
