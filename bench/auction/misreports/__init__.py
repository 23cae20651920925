"""What a user gains by untrue statements in a bid: played to the end in a real cell with true executors."""
