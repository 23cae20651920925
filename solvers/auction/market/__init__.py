"""Market of a zone: nodes, their free capacity and prices, and a task's demand on them."""
