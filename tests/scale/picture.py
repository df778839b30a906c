"""The picture of a run from zero nodes to a serving server: ``python -m tests.scale.picture RECORD.json PICTURE.svg``.

The record is what `timeline` saved of the watches and of the audit log; nothing in the picture is drawn by hand.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CAPTION = (
    "Recorded on a real API server, scheduler and Karpenter v1.14.0. kwok plays the machines and kubelets: "
    "a machine takes 8 s to start, the sizer 2 s, the engine 5 s."
)
INK, FAINT, PAPER, LINE = "#1f2933", "#667684", "#ffffff", "#dde3e8"
COLOURS = {
    "waits": "#f3c98b",
    "works": "#8fb3dd",
    "well": "#93cf9e",
    "done": "#d5dbe0",
}
WIDTH, LEFT, RIGHT, TOP = 1180, 170, 24, 62
LANE, BAR, ROW = 46, 26, 24
# A label needs so many units of width a character.
LETTER = 6.4
WRITERS = {
    "plimsoll-operator": "operator",
    "karpenter": "Karpenter",
    "kube-scheduler": "scheduler",
    "deployment-controller": "Deployment controller",
    "replicaset-controller": "ReplicaSet controller",
    "kwok": "kubelet (kwok)",
}


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of time in which something stayed as it was; seconds."""

    start: float
    end: float
    label: str
    kind: str


Lane = tuple[str, list[Part]]
Step = dict[str, Any]


def lanes(record: Mapping[str, Any]) -> list[Lane]:
    """Everything that lived, a lane each, in the order in which it came."""
    steps: list[Step] = record["steps"]
    end = end_of(record)
    names = {
        kind: list(dict.fromkeys(s["name"] for s in steps if s["kind"] == kind))
        for kind in ("Pod", "NodeClaim", "Node")
    }
    sizing = next(name for name in names["Pod"] if "-sz-" in name)
    server = next(name for name in names["Pod"] if "-sz-" not in name)
    pod_words = {
        "created": ("waits for a node", "waits"),
        "node ": ("{}", "works"),
        "sized": ("{}", "works"),
        "ready": ("ready", "well"),
    }
    return [
        ("Ready of the server", _ready(steps, end)),
        ("sizing pod", _life(steps, "Pod", sizing, _told(pod_words, "measures", "done"), end)),
        (
            "NodeClaim",
            _life(
                steps, "NodeClaim", names["NodeClaim"][0],
                {"created": ("", "waits"), "Launched": ("the machine starts", "waits"),
                 "Initialized": ("initialized", "well")}, end,
            ),
        ),
        (
            "Node",
            _life(
                steps, "Node", names["Node"][0],
                {"created": ("", "waits"), "ready": ("ready", "well")}, end,
            ),
        ),
        ("server pod", _life(steps, "Pod", server, _told(pod_words, "", "loads"), end)),
    ]  # fmt: skip


def _told(
    words: Mapping[str, tuple[str, str]], placed: str, sized: str
) -> dict[str, tuple[str, str]]:
    found = {**words, "node ": (placed, "works"), "sized": (sized, "works")}
    return {**found, "sized": (sized, "done")} if sized == "done" else found


def _life(
    steps: Sequence[Step], kind: str, name: str, words: Mapping[str, tuple[str, str]], end: float
) -> list[Part]:
    """The parts of one object's life, from the steps that change what it is called."""
    turns: list[tuple[float, str, str]] = []
    for step in steps:
        if (step["kind"], step["name"]) != (kind, name):
            continue
        if step["what"] == "gone":
            turns.append((step["at"], "", ""))
        found = next((w for key, w in words.items() if step["what"].startswith(key)), None)
        if found is not None:
            turns.append((step["at"], *found))
    return _parts(turns, end)


def _ready(steps: Sequence[Step], end: float) -> list[Part]:
    turns: list[tuple[float, str, str]] = []
    for step in steps:
        status, _, rest = step["what"].removeprefix("Ready ").partition(" ")
        if step["kind"] == "InferenceServer" and step["what"].startswith("Ready "):
            reason = rest.partition(":")[0]
            waits = reason in {"Unschedulable", "NodeNominated", "SizingPending"}
            kind = "well" if status == "True" else "waits" if waits else "works"
            if not turns or turns[-1][1] != reason:
                turns.append((step["at"], reason, kind))
    return _parts(turns, end)


def _parts(turns: Sequence[tuple[float, str, str]], end: float) -> list[Part]:
    following = [*(turn[0] for turn in turns[1:]), end]
    return [
        Part(at, until, label, kind)
        for (at, label, kind), until in zip(turns, following, strict=True)
        if kind and until > at
    ]


def end_of(record: Mapping[str, Any]) -> float:
    """Seconds at the right edge: the last step, and a moment more."""
    return float(max(step["at"] for step in record["steps"])) + 1.0


def draw(record: Mapping[str, Any]) -> str:
    """The SVG; the same record makes the same picture."""
    end, found = end_of(record), lanes(record)
    writers = [w for w in WRITERS if any(write["who"] == w for write in record["writes"])]
    below = TOP + LANE * len(found) + 40
    height = below + ROW * len(writers) + 62

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at / end

    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'font-family="Inter, Helvetica, Arial, sans-serif" fill="{INK}">\n'
            f'<rect width="{WIDTH}" height="{height}" fill="{PAPER}"/>\n'
        ),
        _text(20, 30, "From zero nodes to serving", size=18, weight=600),
    ]
    parts += [
        f'<line x1="{x(s):.1f}" y1="{TOP - 14}" x2="{x(s):.1f}" y2="{height - 52}" stroke="{LINE}"/>\n'
        + _text(x(s), height - 36, f"{s} s", size=11, ink=FAINT, anchor="middle")
        for s in range(0, int(end) + 1, 2)
    ]
    for number, (name, bars) in enumerate(found):
        top = TOP + LANE * number
        parts.append(_text(LEFT - 12, top + 18, name, size=12.5, anchor="end"))
        parts += [_bar(x(p.start), x(p.end), top, p) for p in bars]
    parts.append(_text(20, below - 14, "Writes", size=12.5, weight=600))
    for number, who in enumerate(writers):
        top = below + ROW * number
        parts.append(_text(LEFT - 12, top + 12, WRITERS[who], size=11.5, anchor="end", ink=FAINT))
        parts += [
            f'<circle cx="{x(w["at"]):.1f}" cy="{top + 8}" r="3.2" fill="#4e79a7" fill-opacity=".7">'
            f"<title>{escape(_told_write(w))}</title></circle>\n"
            for w in record["writes"]
            if w["who"] == who and w["at"] <= end
        ]
    parts.append(_text(20, height - 12, CAPTION, size=11, ink=FAINT))
    return "".join(parts) + "</svg>\n"


def _told_write(write: Mapping[str, Any]) -> str:
    return f"{write['at']:.2f} s: {write['verb']} {write['resource']} {write['name']}"


def _bar(start: float, end: float, top: float, part: Part) -> str:
    label = part.label if len(part.label) * LETTER < end - start - 8 else ""
    return (
        f'<rect x="{start:.1f}" y="{top}" width="{max(1.0, end - start):.1f}" height="{BAR}" rx="3" '
        f'fill="{COLOURS[part.kind]}" stroke="{PAPER}"><title>{escape(part.label)} '
        f"{part.start:.2f} to {part.end:.2f} s</title></rect>\n"
        + (_text(start + 6, top + 17, label, size=11.5) if label else "")
    )


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: float,
    weight: int = 400,
    ink: str = INK,
    anchor: str = "start",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{ink}" '
        f'text-anchor="{anchor}">{escape(text)}</text>\n'
    )


def main(argv: Sequence[str]) -> int:
    """Draw one record."""
    record, picture = map(Path, argv)
    picture.write_text(draw(json.loads(record.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
