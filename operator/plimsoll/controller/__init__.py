"""The operator: kopf as informer, a keyed queue, pure planning, server-side apply."""
