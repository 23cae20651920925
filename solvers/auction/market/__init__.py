"""What a task may use: nodes, their free capacity and prices, and a task's demand on them."""
