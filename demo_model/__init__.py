"""The demo model: its questions, training, packing and float reference. README.md says how to make it again."""
