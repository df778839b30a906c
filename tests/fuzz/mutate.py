"""Making bad input of good: of bytes, and of JSON by its structure."""

from __future__ import annotations

import json
import math
from copy import deepcopy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

#: What breaks readers: ends of number ranges, marks of the formats, digits beside them.
TOKENS = (
    b"0", b"-1", b"1", b"9223372036854775807", b"9223372036854775808", b"18446744073709551615", b"1e999",
    b"NaN", b"true", b"null", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b" ", b"\0", b"\n", b"../", b"/",
    b"\xff\xff\xff\xff\xff\xff\xff\xff", b"\x00\x00\x00\x80", b"\xff", b"\x7f", b"\xed\xa0\x80", b"PK\x01\x02",
    b"PK\x05\x06", b"GGUF", b"cos\nsystem\n", b"R.", b".experts.7", b"=", b"--", b"GiB", b"e9",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 7, 64, 255, 1 << 20, (1 << 20) + 1, 1 << 31, 1 << 63, 1 << 70, True, False, None, "", "7",
    "auto", "x" * 300, "\ud800", "\n\x1b[2J", math.nan, math.inf, -0.0, 0.5, 1e308, [], {}, [0], [None], [[]],
    [{}], {"": None}, {"type": []}, [1, "a"], [-1] * 70, "float16", "full_attention", [True], {"rope_type": 5},
)  # fmt: skip


def of_bytes(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """One to eight small changes."""
    changed = bytearray(data)
    for _ in range(1 + int(random.expovariate(0.7)) % 8):
        at = random.randrange(len(changed) + 1)
        match random.randrange(7):
            case 0 if at < len(changed):
                changed[at] ^= 1 << random.randrange(8)
            case 1 if at < len(changed):
                changed[at] = random.randrange(256)
            case 2:
                changed[at:at] = random.choice(TOKENS)
            case 3:
                token = random.choice(TOKENS)
                changed[at : at + len(token)] = token
            case 4:
                del changed[at : at + 1 + int(random.expovariate(0.1))]
            case 5:
                piece = changed[at : at + 1 + int(random.expovariate(0.05))]
                changed[at:at] = piece * random.choice((1, 1, 2, 9))
            case 6:
                other = random.choice(others)
                start = random.randrange(len(other) + 1)
                changed[at:at] = other[start : start + 1 + int(random.expovariate(0.05))]
    return bytes(changed[: 1 << 16])


def of_json(document: Any, random: Random, keys: Sequence[str]) -> Any:
    """One to five values or keys replaced, added, removed or moved."""
    document = json.loads(json.dumps(document))
    for _ in range(1 + int(random.expovariate(0.9)) % 5):
        place = _place(document, random)
        if isinstance(place, dict):
            _in_object(place, random, keys)
        elif isinstance(place, list) and place:
            _in_list(place, random)
    return document


def _in_object(place: dict[str, Any], random: Random, keys: Sequence[str]) -> None:
    key = random.choice(list(place) or [""])
    match random.randrange(6):
        case 0:
            place.pop(key, None)
        case 1:
            place[random.choice(keys)] = _value(random)
        case 2:
            other = random.choice(list(place) or [""])
            place[key], place[other] = place.get(other), deepcopy(place.get(key))
        case 3:
            place[key] = _scaled(place.get(key), random)
        case _:
            place[key] = _value(random)


def _in_list(place: list[Any], random: Random) -> None:
    at = random.randrange(len(place))
    match random.randrange(4):
        case 0:
            del place[at]
        case 1:
            place.append(deepcopy(place[at]))
        case 2:
            place[at] = _scaled(place[at], random)
        case _:
            place[at] = _value(random)


def _value(random: Random) -> Any:
    return deepcopy(random.choice(VALUES))  # lists and objects of them are changed later


def _place(document: Any, random: Random) -> Any:
    """Some object or list of it."""
    place = document
    while random.random() < 0.6:
        inner = list(place.values() if isinstance(place, dict) else place)
        inner = [item for item in inner if isinstance(item, dict | list)]
        if not inner:
            break
        place = random.choice(inner)
    return place


def _scaled(value: Any, random: Random) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return random.choice(
            (value + 1, value - 1, value * 2, value // 2, -value, value * 1024, str(value))
        )
    return [value] if random.random() < 0.5 else {"a": value}
