"""Hugging Face models with adaptively gated experts: their own, or made of dense feed-forward networks."""
