"""The policy `merging`: profile, merge and allocate fine-tuning jobs of one base model, by forecasts
(Ymir)."""
