"""The model that is served: where its file is, and what the plugin says of it."""
