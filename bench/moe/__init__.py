"""`millrace bench moe`: mixture-of-experts models, their training and their serving."""
