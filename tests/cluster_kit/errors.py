"""The kit's own failures: each sentence says what to do."""


class KitError(Exception):
    """The cluster cannot be started, found or used as asked."""


class BusyError(KitError):
    """Another process holds this cluster's name.

    Attributes:
        pid: that process, or None when it left no number.
    """

    def __init__(self, message: str, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid
