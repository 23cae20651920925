"""The parts of `millrace bench elastic`."""
