"""Carrying sessions from anywhere into a store, and out of it.

A source yields *parcels*: one session each, its row and its log, and *problems*: what it could not take, by name.
`landing` brings parcels into a store. An entry's `append_id` proves what it is, here as everywhere: a parcel that
landed before is recognised, one that has grown since is continued, and what differs is left alone and told.
"""
