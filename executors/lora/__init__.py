"""The multi-LoRA training engine: many adapters, one frozen base model, one forward and backward for all."""
