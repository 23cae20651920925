"""Fine-tuning jobs that may be merged, for simulations."""
