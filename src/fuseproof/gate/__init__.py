"""The gate from files: settings, waivers, what the history remembers, one gated night, and how it is shown.

Imports neither torch nor pytest: everything here runs on a laptop over copied files. What starts processes is pytest's
side; what decides is `fuseproof.verdicts`.
"""
