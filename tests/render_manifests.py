"""manifests/{crd,operator,install}.yaml, made from the chart: `python -m tests.render_manifests`.

They are for people without Helm. A test holds them equal to what the chart renders.
"""

from __future__ import annotations

import re
import sys

from tests.chart.rendering import ROOT, template
from tests.cluster_kit.errors import KitError

MANIFESTS = ROOT / "manifests"
VALUES = {"crds": {"keep": False}}
MADE = "# Made by `make manifests` from charts/plimsoll; do not edit.\n"
# Helm makes namespaces by --create-namespace, without labels.
NAMESPACE = """\
# The operator: namespace, identity, rights and Deployment. With crd.yaml in front this is install.yaml (see README.md).
apiVersion: v1
kind: Namespace
metadata:
  name: plimsoll-system
  labels:
    app.kubernetes.io/name: plimsoll
    pod-security.kubernetes.io/enforce: restricted
    pod-security.kubernetes.io/audit: restricted
    pod-security.kubernetes.io/warn: restricted
"""
_HELM_ONLY = re.compile(r"(?m)^(# Source: .*| +helm\.sh/chart: .*)\n")


def render() -> dict[str, str]:
    """The text of each file, by name. Raises HelmRefusedError, KitError."""
    documents = re.split(r"(?m)^---\n", template(VALUES).text)
    plain = [_HELM_ONLY.sub("", text).strip() + "\n" for text in documents if text.strip()]
    (crd,) = [text for text in plain if "\nkind: CustomResourceDefinition\n" in text]
    crd = MADE + crd
    operator = MADE + "---\n".join([NAMESPACE, *(text for text in plain if text not in crd)])
    return {"crd.yaml": crd, "operator.yaml": operator, "install.yaml": f"{crd}---\n{operator}"}


def main() -> int:
    """Write the files; 1 where Helm cannot be had."""
    try:
        made = render()
    except KitError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    for name, text in made.items():
        (MANIFESTS / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
