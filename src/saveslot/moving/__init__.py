"""Import from anywhere into a store, export to files, copy between stores.

A source yields *parcels*, one session each with its row and its log, and *problems*: what it had to leave out, and why.
`loader` appends parcels to a store. An entry is recognised by its `append_id`: a session loaded before is skipped, one
that has grown since is continued, and one with another history is left alone and reported.
"""
