"""One module a command; each has a function ``command`` whose docstring is its help."""
