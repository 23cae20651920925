"""The types of the merging policy: fine-tuning jobs of one base model, of which some are merged."""
