"""The Grafana dashboard of the chart.

Its queries use only what the operator exposes: no recording rule, and nothing of the cluster's own
exporters.
"""
