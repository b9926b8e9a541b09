"""The history of one session for synchronous callers, and sessions as YAML files."""
