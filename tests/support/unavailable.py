"""The two ways in which a test can be left without a broker."""


class Unavailable(Exception):
    """This machine offers no such broker: the text says how to get one.

    Tests that need the broker are skipped (in continuous integration: failed).
    """


class StartFailed(Exception):
    """A broker that ought to run does not: the text has the tail of its log.

    Always an error of the test run, never a reason to skip.
    """
