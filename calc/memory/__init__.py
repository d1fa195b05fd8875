"""A step as a timeline of allocations: what is on one GPU, and when."""
