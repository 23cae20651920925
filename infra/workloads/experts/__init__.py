"""Jobs that train and serve mixture-of-experts models, for simulations."""
