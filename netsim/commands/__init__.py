"""The commands of `netsim`: thin shells that read arguments, and print what comes of them."""
