"""Variables: creation, allocation on the ranks, transfers and collectives."""
