"""What a task may use: nodes, their room and their prices, and what a task asks of them."""
