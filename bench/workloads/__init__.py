"""The evaluation settings of the auction's paper (section 5.1), as seeded workloads for a cell."""
