"""`millrace bench merging`: what merging fine-tuning jobs is worth."""
