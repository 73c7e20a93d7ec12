"""fuseproof: are the fused kernels still right, and is nothing slower or hungrier, on this GPU?"""

__version__ = "0.1.0"
