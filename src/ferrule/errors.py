"""Every error that Ferrule raises: what happened, where, why, and what to do.

One family, one format. `code` is the PJRT (absl) status code that crosses the C API; the message is what the
user reads. Raise with keyword parts and let `FerruleError` join them:

    raise Unsupported("op 'foo.bar' is not supported", where=op.loc, why="...", fix="...")
"""

from __future__ import annotations


class FerruleError(Exception):
    """Base of all errors. `str(error)` is the whole message, `error.code` the PJRT error code name."""

    code = "INTERNAL"

    def __init__(self, what: str, *, where: object = None, why: str = "", fix: str = "") -> None:
        self.what, self.where, self.why, self.fix = what, where, why, fix
        text = what
        if where is not None and str(where):
            text += f"\n  where: {where}"
        if why:
            text += f"\n  why: {why}"
        if fix:
            text += f"\n  fix: {fix}"
        # Names in programs are any bytes; those that are no text would keep the message from being shown.
        super().__init__(text.encode("utf-8", "replace").decode())


class InvalidArgument(FerruleError):
    """The input is malformed or does not fit: bytes, text, shapes, dtypes, options."""

    code = "INVALID_ARGUMENT"


class Unsupported(FerruleError):
    """The input is well formed, but this version or target of Ferrule cannot do it."""

    code = "UNIMPLEMENTED"


class NotFound(FerruleError):
    """A file, library, device or custom-call target does not exist."""

    code = "NOT_FOUND"


class OutOfMemory(FerruleError):
    """The device or host has not enough memory."""

    code = "RESOURCE_EXHAUSTED"


class FailedPrecondition(FerruleError):
    """The call is right but the state is not: a version mismatch, a missing device, a deleted buffer."""

    code = "FAILED_PRECONDITION"


class Internal(FerruleError):
    """A bug in Ferrule."""

    code = "INTERNAL"
