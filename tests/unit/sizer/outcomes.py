"""Reads what a run left, and a program whose model mount hangs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.core.report import Failure, Report, decode

from .conftest import POD_UID, REQUEST_HASH

if TYPE_CHECKING:
    from .conftest import Result

HANG = """
import os, sys
import plimsoll.checkpoint
def hang(*args, **keywords):
    sys.stderr.write("hanging\\n")
    os.read(os.pipe()[0], 1)  # as on a mount that does not answer: inside a system call, for ever
plimsoll.checkpoint.read_checkpoint = hang
from plimsoll.sizer.__main__ import main
sys.exit(main([sys.argv[1]]))
"""


def report(result: Result) -> Report:
    assert result.code == 0, result.text + result.errors
    outcome = decode(result.text, pod_uid=POD_UID, request_hash=REQUEST_HASH)
    assert isinstance(outcome, Report)
    return outcome


def failure(result: Result, code: int, reason: str) -> Failure:
    assert result.code == code, result.text + result.errors
    assert len(result.text.encode()) <= 2048
    outcome = decode(result.text, pod_uid=POD_UID, request_hash=REQUEST_HASH)
    assert isinstance(outcome, Failure)
    assert outcome.reason == reason
    return outcome
