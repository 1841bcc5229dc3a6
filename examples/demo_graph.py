"""The two runs of demo_compare.py as one HTML page: ``msprobe graph_visualize`` writes it and says where they part."""

from __future__ import annotations

import demo_compare

if __name__ == "__main__":
    demo_compare.compare("graph_visualize")
    print("\nOpen this file in a browser: it stands at that call. Press ? there for the keys.")
