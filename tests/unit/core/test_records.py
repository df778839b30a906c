"""The light dataclasses behave as the standard module's."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plimsoll.core import records
from plimsoll.core.terms import CudaMemory

OPERATOR = Path(__file__).parents[3] / "operator"


def _pair(module: Any) -> list[type]:
    """The same classes by one of the two modules."""

    @module.dataclass(frozen=True, slots=True)
    class Frozen:
        first: int
        second: str = "two"
        rest: dict[str, int] = module.field(default_factory=dict, compare=False)

        @property
        def sum(self) -> str:
            return f"{self.first}{self.second}"

    @module.dataclass(slots=True)
    class Mutable:
        first: int
        seen: list[int] = module.field(default_factory=list)

    @module.dataclass(frozen=True)
    class Open:
        first: int

    @module.dataclass(frozen=True, slots=True, kw_only=True)
    class Named:
        first: int = 3
        second: int

    return [Frozen, Mutable, Open, Named]


LIGHT, STANDARD = _pair(records), _pair(dataclasses)
VALUES = st.integers(0, 2) | st.text("ab", max_size=1)
CALLS = st.tuples(
    st.lists(VALUES, max_size=4),
    st.dictionaries(st.sampled_from(["first", "second", "rest", "seen", "other"]), VALUES),
)


def made(cls: type, call: tuple[list[Any], dict[str, Any]]) -> Any:
    """An instance, or the error's type."""
    try:
        return cls(*call[0], **call[1])
    except TypeError:
        return TypeError


@given(index=st.integers(0, 3), one=CALLS, two=CALLS)
def test_as_the_standard_module(
    index: int, one: tuple[list[Any], dict[str, Any]], two: tuple[list[Any], dict[str, Any]]
) -> None:
    light, standard = LIGHT[index], STANDARD[index]
    mine, theirs = made(light, one), made(standard, one)
    assert (mine is TypeError) == (theirs is TypeError)
    if mine is TypeError:
        return
    name = light.__qualname__
    assert repr(mine) == repr(theirs).replace(standard.__qualname__, name)
    assert dataclasses.asdict(mine) == dataclasses.asdict(theirs)
    assert light.__match_args__ == standard.__match_args__  # type: ignore[attr-defined]
    assert mine != theirs
    other = made(light, two)
    if other is not TypeError:
        assert (mine == other) == (theirs == made(standard, two))
    changed = records.replace(mine, first=9)
    assert changed == dataclasses.replace(mine, first=9)
    assert repr(changed) == repr(dataclasses.replace(theirs, first=9)).replace(
        standard.__qualname__, name
    )
    if light.__hash__ is not None:
        assert hash(mine) == hash(theirs) == hash(copy.copy(mine))
    assert (light.__hash__ is None) == (standard.__hash__ is None)
    assert copy.deepcopy(mine) == mine


@pytest.mark.parametrize("index", [0, 2, 3])
def test_frozen_is_frozen(index: int) -> None:
    item = LIGHT[index](first=1, **({"second": 2} if index != 2 else {}))
    with pytest.raises(dataclasses.FrozenInstanceError, match="'first'"):
        item.first = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="'first'"):
        del item.first
    assert item.first == 1


def test_slots_and_mutable() -> None:
    item = LIGHT[1](1)
    item.first = 5
    assert item == LIGHT[1](5)
    assert not hasattr(item, "__dict__")
    with pytest.raises(AttributeError):
        item.other = 1
    assert LIGHT[1](1).seen is not item.seen


def test_fields_as_the_standard_module_tells_them() -> None:
    for light, standard in zip(LIGHT, STANDARD, strict=True):
        names = [field.name for field in dataclasses.fields(standard)]
        assert [field.name for field in dataclasses.fields(light)] == names
        assert [field.name for field in records.fields(light)] == names
        assert dataclasses.is_dataclass(light)


def test_pickle_of_a_real_one() -> None:
    item = CudaMemory(total_bytes=1, free_bytes=2)
    assert pickle.loads(pickle.dumps(item)) == item


def test_what_is_left_out_is_refused() -> None:
    with pytest.raises(TypeError, match="not supported"):

        @records.dataclass(frozen=True)
        class _After:
            first: int

            def __post_init__(self) -> None: ...

    with pytest.raises(TypeError, match="not supported"):

        @records.dataclass(frozen=True)
        class _Below(LIGHT[2]):  # type: ignore[misc, valid-type]
            second: int = 0


#: Modules of the standard library that cost the sizer milliseconds and that it does not need.
HEAVY = {"ast", "dataclasses", "inspect", "subprocess", "tokenize", "traceback"}


@pytest.mark.parametrize("module", ["plimsoll.sizer.run", "plimsoll.core.engines.lightllm"])
def test_start_up_loads_nothing_heavy(module: str) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(OPERATOR)!r}); import {module}; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True
    )
    assert not HEAVY & set(done.stdout.split())
