"""The experts policy: mixture-of-experts models on ranks, their experts placed where the tokens go."""
