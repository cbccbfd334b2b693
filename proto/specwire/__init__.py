"""What edge and cloud must agree on: protocol, distributions, acceptance, randomness.

The package holds no input or output. Import from its modules; the names below
are those that users of the Python API meet.
"""

from specwire.errors import SpecwireError
from specwire.sampling import SamplingParams

__version__ = "0.1.0"

__all__ = ["SamplingParams", "SpecwireError", "__version__"]
