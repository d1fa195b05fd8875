"""Training memory per GPU, in exact bytes: facts → `Job` → `Estimate` → tables."""
