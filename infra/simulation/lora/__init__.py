"""The simulated LoRA runner of a cell's nodes."""
