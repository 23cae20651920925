"""Architectures of transformers that the multi-LoRA engine supports: each is built small and probed."""
