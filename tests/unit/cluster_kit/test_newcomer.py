"""The newcomer's script has at most five commands, and what each took is read from bash's trace."""

from __future__ import annotations

from tests.cluster.chart.newcomer import SCRIPT, commands, seconds_by_command

TRACE = """\
+ 1000.0 source docs/newcomer.sh
++ 1000.1 set -euo pipefail
++ 1000.1 trap 'kill $(jobs -p)' EXIT
++ 1000.2 helm install plimsoll charts/plimsoll --namespace plimsoll-system --wait
++ 1004.7 kubectl apply -f manifests/samples/smollm2.yaml
++ 1005.0 curl --silent localhost:8080/completion
++ 1005.01 kubectl port-forward service/smollm2 8080:80
++ 1007.5 kill 17
"""


def test_at_most_five_commands() -> None:
    found = commands(SCRIPT.read_text())
    assert 1 < len(found) <= 5
    assert [line.split()[0] for line in found] == ["helm", "kubectl", "kubectl", "kubectl", "curl"]


def test_comments_and_settings_are_no_commands() -> None:
    script = "#!/bin/bash\n# text\nset -e\ntrap x EXIT\n\nkubectl apply \\\n  -f x\nhelm list\n"
    assert [line.split() for line in commands(script)] == [
        ["kubectl", "apply", "-f", "x"],
        ["helm", "list"],
    ]


def test_seconds_by_command() -> None:
    """A command in the background takes no time of its own, whenever its trace appears."""
    assert seconds_by_command(TRACE) == {
        "helm install plimsoll charts/plimsoll": 4.5,
        "kubectl apply -f manifests/samples/smollm2.yaml": 0.3,
        "curl": 2.5,
    }
