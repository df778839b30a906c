"""The pure domain: what a model costs, what a GPU holds, what an engine can do with it.

Standard library only. Nothing in here reads a file, a clock, an environment variable or a device:
the same question always gets the same answer, on a laptop and on a GPU node.
"""
