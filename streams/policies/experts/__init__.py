"""The policy `experts`: mixture-of-experts models on ranks, with experts placed by the routed tokens."""
