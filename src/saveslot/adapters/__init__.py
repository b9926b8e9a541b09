"""Agent frameworks on Saveslot: one file and one extra per framework.

Importing one of them needs its framework; importing this package needs none.
"""
