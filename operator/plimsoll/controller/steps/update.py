"""Whether a newer rendering waits: an upgrade of the operator changes nothing that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll.controller.objects import versions
from plimsoll.controller.objects.names import SIZER_IMAGE
from plimsoll.controller.status import TRUE, UPDATE_AVAILABLE, Condition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plimsoll.controller.objects import BuildContext


def update_available(
    template: Mapping[str, Any] | None, context: BuildContext, newest: int = versions.LATEST
) -> Condition | None:
    """That this operator would render the template otherwise; None where it would not.

    Args:
        template: the wanted pod template, rendered by the rules of the live one.
        context: the operator's own sizer image.
        newest: the render version of a new server like it.
    """
    if template is None:
        return None
    version = versions.version_of(template)
    image = template["metadata"]["annotations"].get(SIZER_IMAGE)
    parts = []
    if version is not None and version < newest:
        parts.append(f"render version {version}, now {newest}")
    if image != context.sizer_image:
        parts.append(f"sizer {image}, now {context.sizer_image}")
    if not parts:
        return None
    return Condition(
        UPDATE_AVAILABLE, TRUE, "OlderRendering",
        f"The servers run what an older operator rendered ({'; '.join(parts)}). The next change of "
        "the spec takes it up; set spec.rollout.updatePolicy to WithOperator to do so now, which "
        "restarts the servers.",
    )  # fmt: skip
