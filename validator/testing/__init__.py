"""The pytest plugin's parts, and how suites are run: what must hold of a port, as tests in its owner's CI."""
