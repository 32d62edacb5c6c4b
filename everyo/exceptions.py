"""The errors EveryO raises. Each states the fact, the values and the remedy."""

__all__ = [
    "EveryOBackendError",
    "EveryOConfigurationError",
    "EveryOCudaError",
    "EveryODTypeError",
    "EveryODeviceError",
    "EveryOError",
    "EveryOGradientError",
    "EveryOIndexError",
    "EveryOSerializationError",
    "EveryOShapeError",
    "EveryOTraceError",
]


class EveryOError(Exception):
    """Base of every error that EveryO raises on purpose."""


class EveryOShapeError(EveryOError, ValueError):
    """Shapes, sizes, axes, labels or channel counts that do not fit together."""


class EveryOIndexError(EveryOShapeError, IndexError):
    """An index outside its axis; both a shape error and an `IndexError`."""


class EveryODTypeError(EveryOError, ValueError):
    """A dtype that is unknown, or data that has none of the supported ones."""


class EveryODeviceError(EveryOError, ValueError):
    """A device that does not exist, or tensors on different devices."""


class EveryOGradientError(EveryOError):
    """Gradients asked for where there are none, or of values that were overwritten."""


class EveryOSerializationError(EveryOError):
    """A file or a state that cannot be written, read or loaded."""


class EveryOConfigurationError(EveryOError):
    """A configuration with an unknown section, field or value."""


class EveryOBackendError(EveryOError):
    """A backend (CUDA, a plotting library …) that cannot do what was asked."""


class EveryOCudaError(EveryOBackendError):
    """CUDA was demanded and is not available, or failed."""


class EveryOTraceError(EveryOError):
    """Something that `eo.compile` cannot record faithfully; names the user's line and the way
    out."""
