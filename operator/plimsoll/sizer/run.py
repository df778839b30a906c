"""One run: read the question, read the model, ask the devices, compute, report.

The model is read before the devices are asked: a wrong path is told at once, also while a driver is down.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, Literal

from plimsoll.core.errors import MeasurementFailed, PlimsollError
from plimsoll.core.report import Failure, Report, encode
from plimsoll.sizer import emit, guard
from plimsoll.sizer.answer import answer
from plimsoll.sizer.deadline import Deadline
from plimsoll.sizer.progress import Progress
from plimsoll.sizer.settings import Outputs, Settings, read_outputs, read_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Mode = Literal["size", "guard"]
EXIT_TERMINATED = 128 + signal.SIGTERM


def run(
    mode: Mode,
    env: Mapping[str, str] = os.environ,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Size or guard; write all outputs.

    Args:
        mode: ``size`` writes the measured number into the env file, ``guard`` the stamped one.
        env: the process environment.
        clock: monotonic seconds.
        sleep: waits so many seconds, while a driver comes up.

    Returns:
        The exit code of the module's table; of a guard always 0.
    """
    # The kernel ignores SIGTERM for a container's first process unless it has a handler; without this a
    # deleted pod would hold its GPU for the whole grace period.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(EXIT_TERMINATED))
    outputs = read_outputs(env)
    progress = Progress(clock)
    reporter = _Reporter(mode, outputs, progress)
    deadline = Deadline(outputs.deadline, reporter.expire)
    deadline.start()
    extra: dict[str, Any] = {}
    try:
        settings = read_settings(env, guard=mode == "guard")
        outcome: Report | Failure = answer(outputs, settings, progress, clock=clock, sleep=sleep)
        if isinstance(outcome, Report):
            extra = _deliver(mode, outputs, settings, progress, outcome)
    except PlimsollError as error:
        outcome = reporter.failure(error)
    except Exception as error:  # noqa: BLE001 - the message is the only channel; a traceback alone is lost
        traceback.print_exc()
        outcome = reporter.failure(_unexpected(error))
    if not deadline.claim():
        threading.Event().wait()  # for ever: the watching thread is reporting and ends the process
    return reporter.report(outcome, extra)


def _deliver(
    mode: Mode, outputs: Outputs, settings: Settings, progress: Progress, report: Report
) -> dict[str, Any]:
    """Write the env file; for a guard, compare. Returns what the log says beside the report."""
    tokens, extra = report.max_total_token_num, {}
    if mode == "guard" and settings.stamped_tokens is not None:
        tokens = settings.stamped_tokens  # what the server was told and will use
        extra = {"guard": guard.compare(report, tokens, settings.stamped_class).document()}
    with progress.timed("env", f"writing {outputs.env_file}"):
        try:
            emit.write_env(outputs.env_file, tokens)
        except OSError as error:
            raise MeasurementFailed(
                f"cannot write the env file {outputs.env_file}: {error.strerror}; "
                "the pod must mount a writable emptyDir there",
                field="PLIMSOLL_ENV_FILE",
                file=str(outputs.env_file),
            ) from error
    return extra


def _unexpected(error: Exception) -> PlimsollError:
    return MeasurementFailed(
        f"{type(error).__name__}: {error}; this is a defect of the sizer: the container's log has the details"
    )


class _Reporter:
    """Turns an outcome into outputs and an exit code; used by the work or by the clock, never both."""

    def __init__(self, mode: Mode, outputs: Outputs, progress: Progress) -> None:
        self._mode = mode
        self._outputs = outputs
        self._progress = progress

    def failure(self, error: PlimsollError) -> Failure:
        """The failure message of an error, with all that is known so far."""
        progress = self._progress
        return Failure(
            pod_uid=self._outputs.pod_uid,
            request_hash=self._outputs.request_hash,
            model_digest=progress.model_digest,
            device_class=progress.device_class,
            driver=progress.driver,
            devices=tuple(device.uuid for device in progress.devices),
            rank=0,
            reason=error.reason,
            message=error.message,
            field=error.field,
            file=error.file,
            exit_code=error.exit_code,
        )

    def report(self, outcome: Report | Failure, extra: Mapping[str, Any]) -> int:
        """Write message and log; return the exit code."""
        code = (
            0 if isinstance(outcome, Report) else outcome.exit_code or MeasurementFailed.exit_code
        )
        if self._mode == "guard":
            code = 0  # see plimsoll.sizer.guard
        text = encode(outcome)
        try:
            emit.write_message(self._outputs.termination_log, text)
        except OSError as error:
            # Without its message a result is worth nothing: a sizing must be done again.
            sys.stderr.write(f"cannot write {self._outputs.termination_log}: {error}\n")
            code = 0 if self._mode == "guard" else code or MeasurementFailed.exit_code
        emit.log(emit.log_document(self._mode, code, text, self._progress, extra))
        return code

    def expire(self) -> None:
        """Report that the time is over, and end the process whatever the other thread does."""
        seconds, phase = self._outputs.deadline, self._progress.phase
        error = MeasurementFailed(
            f"the deadline of {seconds:g} s passed while {phase}; "
            "check that the volume answers and that the driver responds"
        )
        code = MeasurementFailed.exit_code
        try:
            code = self.report(self.failure(error), {})
        finally:
            os._exit(code)
