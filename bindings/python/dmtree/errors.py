"""Errors: each says what went wrong and names a way out."""


class Error(Exception):
    """An error of dmtree. After a write, `effect_unknown` says whether it may have happened."""

    def __init__(self, message: str, effect_unknown: bool = False) -> None:
        super().__init__(message)
        self.effect_unknown = effect_unknown


class InvalidArgument(Error, ValueError):
    """An argument cannot be right."""


class Full(Error):
    """No memory is left where it was needed; stored data stays usable."""


class Contended(Error):
    """Other clients held a needed lock or resource until the deadline passed."""


class TimedOut(Error, TimeoutError):
    """The deadline passed."""


class Unreachable(Error, ConnectionError):
    """A node cannot be reached."""


class Revoked(Error):
    """This process, or the node, has lost its membership."""


class Corrupt(Error):
    """Bytes that no correct execution leaves behind."""


class Incompatible(Error):
    """Versions, formats or options that do not fit together."""


class Unsupported(Error):
    """The pool or the index cannot do this."""


class Exists(Error):
    """An index of this name exists already."""


class NotFound(Error):
    """No index of this name exists."""


class Busy(Error):
    """Too much is in flight, or another process has it open."""


class Closed(Error):
    """The pool or the index was closed, or belongs to the parent of a fork."""
