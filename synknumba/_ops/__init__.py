"""Pure arithmetic: whose rows are whose, reductions, moments, launch sizes, trees. No processes, no devices."""
