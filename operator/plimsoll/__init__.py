"""Plimsoll: how many KV-cache tokens an LLM server can hold on the very GPU it will run on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    from plimsoll.core.budget import Device, Fit
    from plimsoll.core.request import SizingRequest

__version__ = "0.1.0"

__all__ = ["__version__", "fit_path"]


def fit_path(
    path: str | PathLike[str],
    device: Device | None = None,
    settings: SizingRequest | None = None,
    *,
    weights: Sequence[int] | None = None,
) -> Fit:
    """Size the model at a path: a folder, a config.json or a .gguf file.

    Args:
        path: What to read; only headers are.
        device: The device; None: the model's part alone.
        settings: The question; its ``model_file`` picks one of several GGUF files.
        weights: Bytes per rank, one for all or one for each; overrides the files'.

    Returns:
        The answer; ``error`` is set when it does not fit.

    Raises:
        PlimsollError: The model, the settings or their combination cannot be sized.
    """
    # Imported here: `import plimsoll` must stay free for those who need only the version.
    from pathlib import Path  # noqa: PLC0415

    from plimsoll.checkpoint import fit_checkpoint, read_checkpoint  # noqa: PLC0415

    file = settings.model_file if settings else None
    checkpoint = read_checkpoint(Path(path), file, require_weights=False)
    return fit_checkpoint(checkpoint, device, settings, weights=weights)
