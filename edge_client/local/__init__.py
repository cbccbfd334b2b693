"""The on-device pair: draft and target both here, through llama.cpp, without a network."""
