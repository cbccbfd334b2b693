"""The simulation held against the real programs, over the relay and over the kernel's netem."""
