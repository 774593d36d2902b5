"""The row of GPU panels on the board Engine detail, from dcgm-exporter."""

from __future__ import annotations

from charts.dashboards.panels import GREEN, RED, YELLOW, Panel, Size, over_time, steps
from charts.dashboards.queries import Query, of_gpu

EXPORTER = "From dcgm-exporter; empty without it."


def panels() -> list[Panel]:
    """What dcgm-exporter says about the pods' cards."""
    return [
        over_time(
            "Utilisation",
            f"{EXPORTER} Share of time in which some kernel ran. High with low power and no tokens: runbook "
            "GLM5HighUtilNoTokens. One card below the others: they wait for it.",
            "percentunit",
            [Query(f"{of_gpu('DCGM_FI_DEV_GPU_UTIL')} / 100", "{{pod}} GPU {{gpu}}")],
            Size(6),
            most=1,
        ),
        over_time(
            "Power",
            f"{EXPORTER} What really computes draws power. Far below the card's limit under load: it waits "
            "for memory, PCIe or others.",
            "watt",
            [Query(of_gpu("DCGM_FI_DEV_POWER_USAGE"), "{{pod}} GPU {{gpu}}")],
            Size(6),
        ),
        over_time(
            "Memory in use",
            f"{EXPORTER} Weights and KV cache, taken at the start; must not change while serving. Cards "
            "that differ: something else runs on one.",
            "bytes",
            [Query(f"{of_gpu('DCGM_FI_DEV_FB_USED')} * 1048576", "{{pod}} GPU {{gpu}}")],
            Size(6),
        ),
        over_time(
            "Temperature",
            f"{EXPORTER} Above 85 degrees cards slow down: check the air of the node.",
            "celsius",
            [Query(of_gpu("DCGM_FI_DEV_GPU_TEMP"), "{{pod}} GPU {{gpu}}")],
            Size(6),
            limits=steps(GREEN, (85, YELLOW), (92, RED)),
        ),
    ]
