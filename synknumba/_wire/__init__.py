"""What the coordinator and the ranks both use: programs, messages, the control block, doorbells, pickles, results."""
