"""Entry points of the plugin."""


def platform() -> str | None:
    return None


def register() -> None:
    return None
