"""Hugging Face models with adaptively gated experts: their own, or made from dense feed-forward networks."""
