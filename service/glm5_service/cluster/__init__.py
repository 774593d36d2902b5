"""The Kubernetes client: what a cluster lacks before the chart is installed, and how an installed release is doing.

`api` reads the cluster, `wanted` the rendered chart; `check` and `nodes` judge, `status` and `screen` show, `events`
tells.
"""
