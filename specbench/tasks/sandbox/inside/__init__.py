"""What runs inside the sandbox, in processes of its own: the tester, which is trusted, and the answerer, which is not.

Only the standard library may be imported here: nothing else of this package is readable from inside.
"""
