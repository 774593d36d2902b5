"""The Kubernetes client: what a cluster lacks before the chart is installed, and how an installed release is doing.

`client` reads the cluster, `wanted` the rendered chart. `install_rules` and `nodes` judge. `release_status` and `screen`
show. `events` tells.
"""
