"""The picture of a run from zero nodes is what its record makes, and shows the run."""

import json
from pathlib import Path

from tests.scale.picture import draw, lanes

IMG = Path(__file__).resolve().parents[2] / "docs" / "img"
RECORD = json.loads((IMG / "scale-from-zero.json").read_text())


def test_the_picture_is_drawn_from_the_record() -> None:
    assert draw(RECORD) == (IMG / "scale-from-zero.svg").read_text()


def test_its_lanes() -> None:
    found = dict(lanes(RECORD))
    ready = [part.label for part in found["Ready of the server"]]
    assert ready.index("Unschedulable") < ready.index("NodeNominated") < ready.index("Ready")
    sizing, server = found["sizing pod"], found["server pod"]
    assert [part.label for part in sizing] == ["waits for a node", "measures", "done"]
    assert server[0].start < sizing[-1].end  # the node is asked for before the sizing pod goes
    assert (server[-1].label, server[-1].kind) == ("ready", "well")
