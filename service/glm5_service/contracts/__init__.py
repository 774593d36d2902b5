"""What passes between the parts of a pod: one model a file, environment or argument list, written and read through it.

The stager, the supervisor, the sidecar, `glm5 cluster` and the chart use these models. The plugin does not import the
service: its tests validate what it writes against the JSON Schemas in `schemas/`, which `generate` makes from the models.
"""
