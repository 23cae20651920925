"""Which architectures of transformers the multi-LoRA engine takes: each is built small and probed."""
