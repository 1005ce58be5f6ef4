"""The two kinds of errors: a mistake in the request, and a failure of headscape or the machine (or of an iteration)."""

import errno

__all__ = ["HeadscapeError", "InputError", "NotConvergedError", "about_a_file"]


class HeadscapeError(Exception):
    """A failure of headscape or the machine; the command line prints it as one line and exits with 1.

    >>> try:
    ...     hs.open_result(run, "nothing")
    ... except hs.HeadscapeError as error:  # also every InputError
    ...     print(error)
    no study is called 'nothing'; there are organize, ...
    """

    exit_code = 1


class InputError(HeadscapeError, ValueError):
    """A mistake in the request: says what is wrong, where, and what to do. Exit code 2.

    >>> hs.load_model("smollm3")
    Traceback (most recent call last):
    headscape.errors.InputError: no bundled model 'smollm3'; did you mean smollm2-135m? known: ...
    """

    exit_code = 2


class NotConvergedError(HeadscapeError):
    """An iteration that did not come to rest; a training run that meets it has diverged."""


def about_a_file(error: Exception) -> InputError | None:
    """An error of the system about a named file or folder (missing, forbidden, read-only, not a folder) as an `InputError`, or None.

    >>> str(about_a_file(PermissionError(13, "Permission denied", "runs/book")))
    'runs/book: permission denied; check the path and who may read and write it'
    """
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop from "):  # so says pathlib before 3.13
        error = OSError(
            errno.ELOOP, "a link that points to itself", str(error).removeprefix("Symlink loop from ").strip("'")
        )
    if not isinstance(error, OSError) or error.filename is None or error.strerror is None:
        return None
    named = str(error.filename)
    shown = named if len(named) <= 200 else f"{named[:200]}..."
    what = error.strerror[:1].lower() + error.strerror[1:]
    return InputError(f"{shown}: {what}; check the path and who may read and write it")
