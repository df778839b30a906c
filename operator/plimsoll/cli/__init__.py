"""The command line: ``plimsoll fit``."""
