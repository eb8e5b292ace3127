"""One call in the coordinator: arguments, rows, plan, results."""
