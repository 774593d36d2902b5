"""The inspection command of the stand-in."""
