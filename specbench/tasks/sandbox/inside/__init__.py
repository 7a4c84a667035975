"""The processes inside the sandbox: the trusted tester and the untrusted answerer.

Only the standard library may be imported here: the sandbox cannot read the rest of this package.
"""

TYPE_CHECKING = False  # every program waits for what is imported here, and typing takes as long as all of subprocess
