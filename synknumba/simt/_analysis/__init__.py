"""Static analyses of a kernel's code: uniformity, bounds, types, loops."""
