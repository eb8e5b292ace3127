"""What is known of a kernel's code before it runs: uniformity, bounds, types, loops."""
