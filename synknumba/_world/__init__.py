"""The ranks from the outside: fork, processes, rounds, failures, output."""
