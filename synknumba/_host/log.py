"""The logger "synknumba" of the script's process: silent until the script configures `logging`.

INFO     worlds that start and end, with the reason; what carries collectives
DEBUG    calls that are planned, functions that are sent, and why something is copied or done in a slower way
"""  # noqa: E501

import logging

log = logging.getLogger("synknumba")
log.addHandler(logging.NullHandler())
