"""``python -m lightllm.server.api_server`` of the stand-in image."""

import runpy

runpy.run_module("standin.lightllm", run_name="__main__")
