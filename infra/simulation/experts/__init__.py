"""Mixture-of-experts models in simulations."""
