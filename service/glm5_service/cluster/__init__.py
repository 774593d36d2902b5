"""The Kubernetes client. Checks a cluster before the chart is installed, and shows how an installed release is doing.

`client` reads the cluster. `wanted` reads the rendered chart. `install_rules` and `nodes` judge. `release_status` and
`screen` show the result. `events` sends Kubernetes Events.
"""
