"""A takeover to look at: `epochfence demo`.

`scenario` says what happens, `leader` is the process that leads, `stage` lets two of
them lead in turn and reads what they write, `view` shows it.
"""
