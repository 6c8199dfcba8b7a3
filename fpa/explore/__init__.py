"""The explorer: a run as static pages that open in a browser from disk, without a server or a network."""

from fpa.explore.serve import serve
from fpa.explore.site import explore

__all__ = ["explore", "serve"]
