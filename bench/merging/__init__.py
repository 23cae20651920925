"""`millrace bench merging`: merged fine-tuning jobs and their switches (Ymir)."""
