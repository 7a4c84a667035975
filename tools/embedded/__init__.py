"""The build of the embedded models, which come with the package: see `__main__`."""
