"""One session log in this process: where the codec and the store meet."""
