"""One run: read the question, read the model, ask the devices, compute, report.

The model is read before the devices are asked: a wrong path is told at once, also while a driver is down.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Literal

from plimsoll.core.errors import MeasurementFailed, PlimsollError
from plimsoll.core.report import Failure, Report, encode
from plimsoll.sizer import emit, guard
from plimsoll.sizer.answer import answer, check_model, measure, read_model, report_of
from plimsoll.sizer.deadline import Deadline
from plimsoll.sizer.progress import Progress
from plimsoll.sizer.settings import TOKENS_KEY, Outputs, Settings, read_outputs, read_settings

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
        mode: ``size`` writes the measured number into the env file, and the values of the server's arguments
            where its template asks for them; ``guard`` writes the stamped number.
        env: the process environment.
        clock: monotonic seconds.
        sleep: waits so many seconds, while a driver comes up.

    Returns:
        The exit code of the module's table; of a guard 0, 10 or 11.
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
    refusal = 0
    try:
        settings = read_settings(env, guard=mode == "guard")
        outcome: Report | Failure
        if mode == "guard":
            outcome, refusal, extra = _guard(
                reporter, outputs, settings, progress, clock=clock, sleep=sleep
            )
        else:
            outcome, values = answer(outputs, settings, progress, clock=clock, sleep=sleep)
            _write_env(outputs, progress, values)
    except PlimsollError as error:
        outcome = reporter.failure(error)
    except Exception as error:  # noqa: BLE001 - the message is the only channel; a traceback alone is lost
        import traceback  # noqa: PLC0415 - 7 ms, and only here

        traceback.print_exc()
        outcome = reporter.failure(_unexpected(error))
    if not deadline.claim():
        threading.Event().wait()  # for ever: the watching thread is reporting and ends the process
    return reporter.report(outcome, extra, refusal)


def _guard(
    reporter: _Reporter,
    outputs: Outputs,
    settings: Settings,
    progress: Progress,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> tuple[Report | Failure, int, dict[str, Any]]:
    """Compare with what was stamped. Returns message, exit code, and what the log says beside it."""
    stamp = settings.stamp
    if stamp.tokens is not None:
        # What the server was told and will use, whatever is measured: first, so that every way to 0 has it.
        _write_env(outputs, progress, {TOKENS_KEY: str(stamp.tokens)})
    model = read_model(settings, progress)
    if settings.refuses and stamp.model_digest not in {None, model.digest}:
        error = MeasurementFailed(
            f"the model at {settings.model_path} has the digest {model.digest}, the server was sized for "
            f"{stamp.model_digest}; the server must be sized again",
            reason="GuardMismatch",
        )
        extra = {"verdict": "AnotherModel", "stampedModel": stamp.model_digest, "wouldRefuse": True}
        return reporter.failure(error), guard.EXIT_MISMATCH, {"guard": extra}
    check_model(model, settings, progress)

    def look() -> guard.Look:
        fit = measure(model, settings, progress, clock=clock, sleep=sleep)
        free = tuple(device.free for device in progress.devices)
        return guard.Look(fit, free, guard.compare(fit, stamp))

    decision = guard.decide(
        look, settings.settle, refuses=settings.refuses, clock=clock, sleep=sleep
    )
    extra = decision.look.comparison.document() | {"reads": decision.reads}
    try:
        outcome: Report | Failure = report_of(decision.look.fit, outputs, model, progress)
    except PlimsollError as error:
        outcome = reporter.failure(error)
    if decision.exit_code == 0 and stamp.tokens is None and isinstance(outcome, Report):
        _write_env(outputs, progress, {TOKENS_KEY: str(outcome.max_total_token_num)})
    return outcome, decision.exit_code, {"guard": extra}


def _write_env(outputs: Outputs, progress: Progress, values: Mapping[str, str]) -> None:
    with progress.timed("env", f"writing {outputs.env_file}"):
        try:
            emit.write_env(outputs.env_file, values)
        except OSError as error:
            raise MeasurementFailed(
                f"cannot write the env file {outputs.env_file}: {error.strerror}; "
                "the pod must mount a writable emptyDir there",
                field="PLIMSOLL_ENV_FILE",
                file=str(outputs.env_file),
            ) from error


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

    def report(self, outcome: Report | Failure, extra: Mapping[str, Any], refusal: int = 0) -> int:
        """Write message and log; return the exit code: for a guard ``refusal``."""
        code = (
            0 if isinstance(outcome, Report) else outcome.exit_code or MeasurementFailed.exit_code
        )
        if self._mode == "guard":
            code = refusal  # see plimsoll.sizer.guard
        text = encode(outcome)
        try:
            emit.write_message(self._outputs.termination_log, text)
        except OSError as error:
            # Without its message a result is worth nothing: a sizing must be done again.
            sys.stderr.write(f"cannot write {self._outputs.termination_log}: {error}\n")
            code = code if self._mode == "guard" else code or MeasurementFailed.exit_code
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
