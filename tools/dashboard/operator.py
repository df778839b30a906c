"""Panels about what the operator does, and how it fares."""

from __future__ import annotations

from tools.dashboard.primitives import OURS, RATE, Panel, counts, quantiles, rates, stat

LIFE = (
    Panel(
        "heatmap",
        "Sizing pods",
        "Seconds from the creation of a sizing pod to its result.",
        ((f"sum by (le) (increase(plimsoll_sizing_duration_seconds_bucket{RATE}))", "{{le}}"),),
        "s",
        width=6,
    ),
    Panel(
        "heatmap",
        "Waits for a GPU",
        "How long waits had lasted that ended with a GPU.",
        ((f"sum by (le) (increase(plimsoll_gpu_wait_duration_seconds_bucket{RATE}))", "{{le}}"),),
        "s",
        width=6,
    ),
    Panel(
        "timeseries",
        "Rollouts",
        "Rollouts and scalings by how they ended.",
        ((f"sum by (result) (increase(plimsoll_rollouts_total{RATE}))", "{{result}}"),),
        width=6,
        stacked=True,
    ),
    Panel(
        "timeseries",
        "Corrections",
        "Pools made smaller by cause, and guards that began to refuse by reason.",
        (
            (f"sum by (cause) (increase(plimsoll_pool_shrinks_total{RATE}))", "smaller: {{cause}}"),
            (
                f"sum by (reason) (increase(plimsoll_guard_refusals_total{RATE}))",
                "refused: {{reason}}",
            ),
        ),
        width=6,
        stacked=True,
    ),
)

OPERATOR = (
    stat("Leaders", "One, always.", ("sum(plimsoll_leader)", "")),
    stat("Operators ready", "Those whose /readyz answers 200.", ("sum(plimsoll_ready)", "")),
    stat(
        "Objects known",
        "Objects in the leader's memory.",
        ("max(plimsoll_store_objects)", ""),
    ),
    stat(
        "Running for",
        "Since the youngest operator started.",
        (f"min((time() - process_start_time_seconds) {OURS})", ""),
        unit="s",
    ),
    stat(
        "Oldest pass",
        "A pass that runs for minutes waits for an answer of the API server.",
        ("max(plimsoll_reconcile_longest_running_seconds)", ""),
        unit="s",
        bad=120,
    ),
    stat(
        "Watches deaf",
        "Full lists in a row that knew more than the watches.",
        ("max(plimsoll_watch_deaf_resyncs)", ""),
        bad=1,
    ),
    stat(
        "Watch restarts",
        "Within the last hour.",
        ("sum(increase(plimsoll_watch_restarts_total[1h]))", ""),
        bad=6,
    ),
    stat(
        "Namespaces set aside",
        "Namespaces that the operator is told to watch and may not read.",
        ("max(plimsoll_namespaces_set_aside)", ""),
        bad=1,
    ),
    rates(
        "Passes",
        "By outcome; error is a defect, refused a no of the API server.",
        "plimsoll_reconciles_total",
        "outcome",
    ),
    Panel(
        "timeseries",
        "Latency of passes",
        "Of all outcomes together.",
        quantiles("plimsoll_reconcile_duration_seconds"),
        "s",
    ),
    Panel(
        "timeseries",
        "From event to pass",
        "How long a server waits for a worker.",
        quantiles("plimsoll_queue_wait_duration_seconds"),
        "s",
    ),
    Panel(
        "timeseries",
        "Queue",
        "Servers that wait for a worker, and the seconds that the first has waited.",
        (
            ("sum(plimsoll_queue_depth)", "servers"),
            ("max(plimsoll_queue_oldest_item_seconds)", "oldest (s)"),
        ),
    ),
    Panel(
        "timeseries",
        "Event loop lag",
        "How late tasks are woken; above half a second the operator lacks CPU.",
        quantiles("plimsoll_event_loop_lag_seconds"),
        "s",
    ),
    rates(
        "API requests",
        "By method and code, without those of the watches.",
        "plimsoll_api_requests_total",
        "verb",
        "code",
    ),
    Panel(
        "timeseries",
        "Latency of API requests",
        "99th percentile by method.",
        quantiles("plimsoll_api_request_duration_seconds", "verb", 0.99),
        "s",
    ),
    rates(
        "Writes to children",
        "A fleet at rest has none.",
        "plimsoll_actions_total",
        "verb",
        "kind",
    ),
    Panel(
        "timeseries",
        "Statuses and Events written",
        "Each because something changed.",
        (
            (f"sum(rate(plimsoll_status_writes_total{RATE}))", "statuses"),
            (f"sum by (outcome) (rate(plimsoll_events_total{RATE}))", "Events {{outcome}}"),
        ),
        "ops",
    ),
    rates(
        "Objects delivered",
        "By the watches, by kind.",
        "plimsoll_watch_events_total",
        "kind",
    ),
    counts(
        "Full lists",
        "Changed: something had been missed. Failed: the API server did not answer.",
        "plimsoll_resyncs_total",
        "outcome",
    ),
    Panel(
        "timeseries",
        "CPU",
        "Cores of each operator.",
        ((f"rate(process_cpu_seconds_total{RATE}) {OURS}", "{{instance}}"),),
    ),
    Panel(
        "timeseries",
        "Memory",
        "Resident memory of each operator.",
        ((f"process_resident_memory_bytes {OURS}", "{{instance}}"),),
        "bytes",
    ),
    Panel(
        "timeseries",
        "File descriptors",
        "Open ones and the most that may be open.",
        (
            (f"process_open_fds {OURS}", "{{instance}} open"),
            (f"process_max_fds {OURS}", "{{instance}} limit"),
        ),
    ),
)
