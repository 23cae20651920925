"""The types of the merging policy: fine-tuning jobs of one base model, some of which are merged."""
