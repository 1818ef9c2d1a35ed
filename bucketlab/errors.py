"""The two ways in which a command ends early. Each carries the one line that the user reads.

Raised where the cause is known; turned into a line on stderr and an exit code in `bucketlab.cli`, and nowhere else.
"""


class BucketlabError(Exception):
    """One line for the user: what is wrong, with which file or option, and what to do about it."""

    exit_code = 1


class WorkFailed(BucketlabError):
    """The work was begun and could not be finished: the script crashed, no step was seen."""

    exit_code = 1


class BadInput(BucketlabError):
    """Wrong usage or unreadable input, found before any work was done."""

    exit_code = 2


class Interrupted(WorkFailed):
    """The user, or a scheduler, stopped the work."""
