"""Many scenarios: what is varied, how it is worked off, where it is kept and written."""
