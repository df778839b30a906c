"""`make demo`: the main job on a real cluster with a real model, from nothing to an answered prompt."""
