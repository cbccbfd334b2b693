"""Draft sources: where an edge takes its draft tokens from."""
