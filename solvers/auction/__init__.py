"""pdFTSP: admit, price and plan each LoRA task on arrival by an online primal-dual auction (ICPP '24)."""
