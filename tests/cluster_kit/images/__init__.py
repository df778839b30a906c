"""The images of the local cluster, built from packages alone: no registry, no network inside a build."""

from .build import TARGETS, build_images, prepare_context
from .host import prerequisites
from .wheels import model_folder

__all__ = ["TARGETS", "build_images", "model_folder", "prepare_context", "prerequisites"]
