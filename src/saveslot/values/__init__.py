"""Plain values and the rules about them. Nothing here knows a codec, a store or a session object."""
