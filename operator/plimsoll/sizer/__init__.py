"""The GPU-side program: measures its devices and its model, and reports how many tokens fit.

Runs as an init container with the very devices, volumes and limits of the server beside it: no API
token, no network, read-only root, any user. Start at :mod:`plimsoll.sizer.__main__`.
"""
