"""Version 1 of the protocol: verifier.proto and the modules generated from it."""
