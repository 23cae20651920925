"""What merging fine-tuning jobs is worth, on measured training curves and step times."""
