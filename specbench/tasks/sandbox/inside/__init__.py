"""The processes inside the sandbox: the tester, which is trusted, and the answerer, which is not.

Only the standard library may be imported here: the sandbox cannot read the rest of this package.
"""
