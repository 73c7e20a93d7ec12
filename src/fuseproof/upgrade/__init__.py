"""Two environments, one verdict: `fuseproof upgrade`; two candidates in one environment: `fuseproof versus`.

What measures is a child with its own interpreter. Nothing here imports torch or pytest: the parent is out of the way.
"""
