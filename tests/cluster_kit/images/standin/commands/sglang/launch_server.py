"""``python3 -m sglang.launch_server`` of the stand-in image."""

import runpy

runpy.run_module("standin.sglang", run_name="__main__")
