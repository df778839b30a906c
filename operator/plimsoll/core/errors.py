"""Every refusal that Plimsoll can give, each with a stable reason and an exit code.

The reasons are an interface: they become reasons of Kubernetes conditions and are matched by
scripts. The sentence beside them may change; the reason may not.
"""

from __future__ import annotations

from typing import ClassVar, Final

_VALUE_LIMIT: Final = 200


class PlimsollError(Exception):
    """A refusal: what is wrong, where, and what to do about it.

    Attributes:
        reason: Stable CamelCase word.
        message: One sentence that names the value and what to do.
        field: Path of the field at fault, for example ``spec.engine.args`` or ``num_hidden_layers``.
        file: File at fault, relative to the model folder where there is one.
        value: The offending value, shortened.
        exit_code: What a program that ends with this error returns.
    """

    default_reason: ClassVar[str] = "Error"
    exit_code: ClassVar[int] = 5

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        field: str | None = None,
        file: str | None = None,
        value: object = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason or self.default_reason
        self.message = message
        self.field = field
        self.file = file
        self.value = _short(value)

    def to_dict(self) -> dict[str, str | int | bool | None]:
        """The error object of ``plimsoll.dev/fit.v1``: every key always present."""
        return {
            "reason": self.reason,
            "message": self.message,
            "field": self.field,
            "file": self.file,
            "value": self.value,
        }


class DoesNotFit(PlimsollError):  # noqa: N818 - named for what a user reads
    """The question was sound and the answer is no: WeightsDoNotFit or BudgetTooSmall."""

    default_reason = "BudgetTooSmall"
    exit_code = 1


class BadModel(PlimsollError):  # noqa: N818 - named for what a user reads
    """The model cannot be read: ModelNotFound, ConfigUnreadable or WeightsUnreadable."""

    default_reason = "ConfigUnreadable"
    exit_code = 2


class BadArgument(PlimsollError):  # noqa: N818 - named for what a user reads
    """An argument makes no sense: a size, a flag, a combination."""

    default_reason = "InvalidArgument"
    exit_code = 2


class Unsupported(PlimsollError):  # noqa: N818 - named for what a user reads
    """Sound input that this version cannot size: an architecture, an engine version, a layout."""

    default_reason = "UnsupportedArchitecture"
    exit_code = 3


class DeviceUnavailable(PlimsollError):  # noqa: N818 - named for what a user reads
    """The device could not be asked; trying again may help."""

    default_reason = "NVMLUnavailable"
    exit_code = 4


class MeasurementFailed(PlimsollError):  # noqa: N818 - named for what a user reads
    """The sizing ran into its deadline or failed in a way that trying again may cure."""

    default_reason = "MeasurementFailed"
    exit_code = 5


class FlagNotAllowed(PlimsollError):  # noqa: N818 - named for what a user reads
    """An engine argument or environment name that Plimsoll itself must set."""

    default_reason = "FlagNotAllowed"
    exit_code = 2


class ResultInvalid(PlimsollError):  # noqa: N818 - named for what a user reads
    """A sizing result that is forged, cut off, or does not add up."""

    default_reason = "ResultInvalid"
    exit_code = 5


def _short(value: object) -> str | int | bool | None:
    """Keep small scalars as they are; anything else becomes a short text that JSON can carry."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < 1 << 63:
        return value
    text = value if isinstance(value, str) else repr(value)
    text = "".join(c if c.isprintable() else "?" for c in text[: _VALUE_LIMIT + 1])
    return text if len(text) <= _VALUE_LIMIT else text[:_VALUE_LIMIT] + "..."
