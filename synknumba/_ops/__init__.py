"""Pure arithmetic, without processes: partition, reductions, moments, launch sizes, trees."""
