"""Model files: configs and tensor headers. The only file reading outside sizer and cli.

Standard library only, never a byte of tensor data, never a pickle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.checkpoint.reader import Checkpoint, parse_config, read_checkpoint
from plimsoll.core.budget import fit
from plimsoll.core.errors import BadModel, Unsupported
from plimsoll.core.records import replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.core.budget import Device, Fit
    from plimsoll.core.request import SizingRequest

__all__ = ["Checkpoint", "fit_checkpoint", "parse_config", "read_checkpoint"]


def fit_checkpoint(
    checkpoint: Checkpoint,
    device: Device | None,
    settings: SizingRequest | None,
    *,
    weights: Sequence[int] | None = None,
) -> Fit:
    """``core.budget.fit`` for a checkpoint; refusals of its content name its file."""
    try:
        answer = fit(checkpoint.config, checkpoint.tensors, device, settings, weights=weights)
    except (BadModel, Unsupported) as error:
        about_model = isinstance(error, BadModel) or error.reason == "UnsupportedArchitecture"
        if about_model and error.file is None:
            is_folder = checkpoint.format in {"safetensors", "pytorch"}
            error.file = "config.json" if is_folder else checkpoint.path.name
        raise
    return replace(answer, model_file=checkpoint.file)
