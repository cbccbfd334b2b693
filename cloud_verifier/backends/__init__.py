"""Target models behind `specwire.ports.TargetBackend`. Start at `load.load_target`.

Only modules in this folder import torch model code, and only when a model is loaded.
"""
