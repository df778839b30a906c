"""The steps that `plan.py` takes, one module each, and what they share. Pure: no I/O, no clock.

    acceptance  is the resource acceptable?
    sizing      is there a number for this spec? (attempts: back-off; sizing_result: reading a report;
                capacity: the result in the status)
    rollout     do the children carry it, do the pods serve? (survey: pods by generation)
    conclusion  the summary: Ready, Reconciling, Stalled, the whole status
    refusals    what to say when the API server refused a write

`podstate` and `obstacles` read one pod.
"""
