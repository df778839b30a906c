"""As much of torch as tells the memory of the fake devices that this container was given."""

from . import cuda

__all__ = ["cuda"]
