"""Training memory per GPU, in exact bytes: facts → `Run` → `Estimate` → tables."""
