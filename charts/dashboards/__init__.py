"""The Grafana boards as code: one module a board, `panels` and `board` their shared parts, `queries` their PromQL.

`python -m charts.dashboards` writes them to charts/glm5/files/dashboards; the JSON there is never edited.
"""
