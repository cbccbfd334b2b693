"""A page with pictures of one scenario: what edge speculation saves there, and where it loses."""
