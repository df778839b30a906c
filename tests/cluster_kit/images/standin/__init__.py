"""A stand-in for LightLLM, vLLM and SGLang on a fake device: what a CPU cannot show about rollouts of real ones.

The image answers to the engines' own commands (``python -m lightllm.server.api_server``, ``vllm serve``,
``python3 -m sglang.launch_server``), takes their flags as strictly as they do, holds weights, CUDA context, pool
and graphs on the fake device until it ends, honours each engine's checks, prints its log lines and failures with
its exit code, and serves its health, metrics and info endpoints. Answers are canned: there is no model.

A model folder needs ``config.json`` and weight files, which may be sparse: their apparent sizes count (safetensors
without the header). ``safetensors`` first, then ``bin``, ``pt``, ``gguf``. The cell is
``2 * layers * kv_heads / tp * head_dim * 2`` bytes (latent caches: one row), whatever windows or states there are.

What a test tells it, by environment variable (``spec.engine.env``):

==============================  ==============================================================================
``STANDIN_LOAD_SECONDS``        loading takes so long (0)
``STANDIN_CRASH_STARTS``        these starts crash: ``1,2`` or ``*``; see the count below
``STANDIN_CRASH``               how: ``oom`` (at the pool, the default), ``exit`` (a traceback while loading),
                                ``flag`` (an argument error, exit 2), ``hostmem`` (host memory until the
                                container's limit kills it, at most STANDIN_HOST_BYTES, then exit 137)
``STANDIN_FAILURE_EXIT``        exit code of every failure instead of the engine's own (argument errors: 2)
``STANDIN_HOST_BYTES``          see ``hostmem`` (268435456)
``STANDIN_OOM_PROMPT_TOKENS``   a prompt of so many tokens or more ends the server by a CUDA out-of-memory error
``STANDIN_HANG``                ``load``: loads for ever, the weights held; ``serve``: from the first completion
                                request on nothing is answered any more, health included
``STANDIN_HANG_AFTER_SECONDS``  with ``serve``: so long after it became ready instead
``STANDIN_IGNORE_SIGTERM``      1: only SIGKILL ends it
``STANDIN_HOLD_SECONDS``        each completion request takes so long (0)
``STANDIN_DRAIN``               1: on SIGTERM finishes running requests first and refuses new ones (503)
``STANDIN_REPORT_FACTOR``       reports so much of its pool, everywhere: 0.9 is a drift of 10 % (1)
``STANDIN_OVERHEAD_BYTES``      takes so much more than a pool leaves it, at graph capture or the checking prefill:
                                a number that leaves no room for it is too large by that (0)
``STANDIN_CONTEXT_BYTES``       CUDA context, taken before anything else (503316480)
``STANDIN_GRAPH_BYTES``         decode graphs, unless they are switched off (67108864)
``STANDIN_NEVER_READY``         1: loads, serves, and its health endpoint answers 503 for ever
``STANDIN_VERSION``             the release whose flags it takes: a key of tests/data/engine_flags.json such as
                                ``0.5.12`` (the newest); LightLLM has one table
``STANDIN_COUNT_FILE``          where starts are counted (/dev/shm/standin-starts: where /dev/shm is a volume of
                                the pod, the count outlives the container; otherwise every start is the first)
==============================  ==============================================================================

Exit codes: 1 for a failed start of LightLLM and vLLM, 2 for arguments, 0 on SIGTERM (143 while loading). SGLang kills
itself by SIGKILL and then leaves with 0, as its ``kill_process_tree`` does: 137 for a shell, but **0 as process 1 of a
container**, which no SIGKILL of its own reaches. ``STANDIN_FAILURE_EXIT=1`` makes it an ordinary failure.
"""
