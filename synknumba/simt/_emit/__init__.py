"""From one thread's code to the code of one core: regions, masks, storage, and the build."""
