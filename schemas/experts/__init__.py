"""The types of the experts policy: mixture-of-experts models that are trained and served over ranks."""
